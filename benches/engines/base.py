"""The contract of an engine: it joins the job, prepares model and optimizer, and moves tensors between ranks.

It knows no model, no clock, no file and no other engine.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from benches import rankenv
from benches.spec import Case

PATIENCE_S = 86400.0
"""Every timeout of the libraries, in seconds: beyond the longest for which a launch may be stopped while others have
their turns. A launch that hangs is ended by its `limit_s`, which does not count those times."""


class Trainer:
    """A model and an optimizer under an engine. One loop drives every engine through these calls."""

    rehearsals: int = 0
    """Steps without update after which gradients travel as they will in the timed part. The gate takes them first;
    where it is brief they fall into the warm-up, which is longer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def zero_grad(self) -> None:
        """Forget the gradients (set to None)."""
        # Without an argument: Horovod's optimizer takes none, and torch's default is set_to_none=True.
        self.optimizer.zero_grad()

    def accumulating(self) -> AbstractContextManager[Any]:
        """Around each pass of a step but the last: its gradients are added up on this rank and do not travel."""
        return nullcontext()

    def synchronize(self) -> None:
        """Return when `.grad` of each parameter holds the average over the ranks."""

    def step(self, scaler: torch.amp.GradScaler | None) -> None:
        """Finish the reduction where that is still to be done, and update the weights."""
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()

    def step_synchronized(self, scaler: torch.amp.GradScaler | None) -> None:
        """Update the weights after `synchronize`."""
        self.step(scaler)

    def settled(self) -> bool:
        """Whether the engine has done what it does once, in its first steps (buckets rebuilt)."""
        return True

    def tune(self, steps: Callable[[int], None]) -> None:
        """Let the library search its settings and freeze them, in the launch's first turn: nobody else runs then.

        `steps` runs so many training steps on this rank. Collective.
        """

    def describe(self) -> dict[str, Any]:
        """Settings read back from the library."""
        return {}


class Engine(ABC):
    """The job as one rank sees it. The constructor joins; `close` leaves no process, thread or port behind."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    def __init__(self, case: Case) -> None:
        self.case = case
        self.local_rank = rankenv.local_rank()
        self.device = pick_device(case, self.local_rank)

    @abstractmethod
    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        """Give every rank rank 0's weights and arrange for gradients to be averaged."""

    @abstractmethod
    def allreduce(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by its average over the ranks."""

    @abstractmethod
    def summing(self, tensor: torch.Tensor) -> Callable[[], object]:
        """What replaces `tensor` by its sum over the ranks, at each call by one call of the library and nothing else:
        this is timed. What depends on the tensor alone is done here, before the clock, as nccl-tests does it."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called."""

    @abstractmethod
    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's `tensor`, by rank, on every rank. Shapes and dtypes must be equal."""

    @abstractmethod
    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        """Send row i of `rows`, shape (ranks, n), to rank i; what came here, a row from each rank, by rank."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the libraries under this engine say of themselves and of their settings."""

    @abstractmethod
    def close(self) -> None:
        """Leave the job."""

    def messages(self, steps: Callable[[int], None]) -> dict[str, Any]:
        """What the library's own trace says of the messages of a step, on rank 0; empty where there is no trace.

        `steps` runs so many training steps on this rank. Collective. It may restart the library, so it comes last.
        """
        return {}

    def gather_json(self, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on every rank."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        sizes = [int(size) for size in self.gather(torch.tensor([data.numel()], device=self.device))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=self.device)
        padded[: data.numel()] = data
        gathered = self.gather(padded)
        return [json.loads(bytes(row[:size].tolist())) for row, size in zip(gathered, sizes, strict=True)]


def pick_device(case: Case, local_rank: int) -> torch.device:
    """The rank's device: the CPU, or the GPU of its local rank. Raises RuntimeError when there is no such GPU."""
    if case.device == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise RuntimeError(f"device=cuda: local rank {local_rank} finds {torch.cuda.device_count()} GPUs on this host")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
