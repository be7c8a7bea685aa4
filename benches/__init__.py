"""What is measured: the Case, the engines, the workloads, the timed loop, the Record and the driver."""
