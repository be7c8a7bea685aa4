"""Workloads: one training step's model, loss and batches. They know no engine and no statistics."""
