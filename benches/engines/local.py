"""The bare model in one process: the baseline that no wrapper has touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benches.engines.base import Engine, Trainer
from benches.spec import Case


class LocalTrainer(Trainer):
    """Model and optimizer as they are."""


class LocalEngine(Engine):
    """One process, no communication."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.rank, self.world_size = 0, 1

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Trainer:
        return LocalTrainer(model, optimizer)

    def allreduce(self, tensor: torch.Tensor) -> None:
        pass

    def summing(self, tensor: torch.Tensor) -> Callable[[], object]:
        return lambda: None

    def barrier(self) -> None:
        pass

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor]

    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass
