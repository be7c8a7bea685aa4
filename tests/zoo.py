"""Models for the tests, used as one's own model is: `model=custom model.factory=zoo:…`."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import nn

from benches import rankenv


class Mixed(nn.Module):
    """Convolution, BatchNorm, dropout, tied weights and a scalar parameter in one small model."""

    def __init__(self, width: int = 16, classes: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.tied = nn.Linear(width, width, bias=False)
        self.again = nn.Linear(width, width, bias=False)
        self.again.weight = self.tied.weight
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(width, classes)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        pooled = self.features(pictures).mean((2, 3))
        return self.head(self.dropout(self.again(self.tied(pooled).relu()))) * self.scale


class Unused(Mixed):
    """A model with a parameter that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.ones(3))


class Faulty(Mixed):
    """Fails on one rank at one call of forward; call 0 is the building of the model."""

    def __init__(self, fault: str, call: int, rank: int = 1) -> None:
        super().__init__()
        self.fault, self.call, self.victim, self.calls = fault, call, rank, 0
        self._perhaps()

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self._perhaps()
        return super().forward(pictures)

    def _perhaps(self) -> None:
        if self.calls == self.call and rankenv.rank() == self.victim:
            FAULTS[self.fault]()


def _raise() -> None:
    raise ValueError("a planted fault")


FAULTS = {
    "raise": _raise,
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(3600),
}


def pictures(generator: torch.Generator, per_rank_batch: int, device: torch.device) -> tuple[Any, Any]:
    """Random 8 x 8 pictures and classes."""
    images = torch.randn(per_rank_batch, 3, 8, 8, generator=generator)
    labels = torch.randint(8, (per_rank_batch,), generator=generator)
    return images.to(device), labels.to(device)


def cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Loss of a classifier."""
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])
