"""A whole training step as one CUDA graph: its kernels, NCCL's among them, are captured once and then replayed.

The way of torch's notes on CUDA graphs ("Whole-network capture", "Usage with DistributedDataParallel"): DDP is made,
warmed up and captured in one stream that is not the default one, after at least 11 steps (the gate's and the
warm-up's), for DDP queries events in its first ten. The parity gate sees the step before it is captured.
"""

from __future__ import annotations

from typing import Any

import torch

from benches.workloads.train import TrainStep, batch_numbers


def leave_default_stream(device: torch.device) -> None:
    """From here on this thread's kernels go to a stream that can be captured."""
    torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


class GraphedStep:
    """Callable of a step's number, as the TrainStep that it captures. Each step copies its batches into place first."""

    def __init__(self, step: TrainStep, number: int) -> None:
        """`number`: of a step whose batches are prepared; they show shapes and dtypes. No step is taken."""
        self.step = step
        self.places = [torch.utils._pytree.tree_map(_place, batch) for batch in self._batches(number)]
        self.graph = torch.cuda.CUDAGraph()
        trainer, workload = step.trainer, step.workload
        # Outside: in the graph they are made in its own memory, at the same addresses each time.
        trainer.zero_grad()
        # Other threads (NCCL's watchdog, a loader that pins memory) may call what a capture forbids to this one.
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.loss = workload.passes(trainer, self.places)
            trainer.step(workload.scaler)

    def __call__(self, number: int) -> torch.Tensor:
        """One whole step. Returns the loss, which the next step overwrites."""
        for place, batch in zip(self.places, self._batches(number), strict=True):
            torch.utils._pytree.tree_map(_fill, place, batch)
        self.graph.replay()
        return self.loss

    def _batches(self, number: int) -> list[Any]:
        return [self.step.batch(one) for one in batch_numbers(self.step.workload.case, number)]


def _place(value: Any) -> Any:
    return value.clone() if torch.is_tensor(value) else value


def _fill(place: Any, value: Any) -> Any:
    return place.copy_(value, non_blocking=True) if torch.is_tensor(place) else place
