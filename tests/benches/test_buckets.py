"""The bucket sizes in a record are those that DDP rebuilt in the order of the gradients, and hold every gradient."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch
from running import make_case
from torch import nn

from benches.engines.ddp import DdpEngine

SIDE = 512
MIB = 2**20
"""Bytes of one weight of SIDE x SIDE numbers."""


class Crossed(nn.Module):
    """Weights are used in another order than that in which they are registered: late comes first, and is used last."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Linear(SIDE, SIDE, bias=False)
        self.wide = nn.Linear(SIDE, 2 * SIDE, bias=False)
        self.narrow = nn.Linear(2 * SIDE, SIDE // 2, bias=False)
        self.early = nn.Linear(SIDE // 2, SIDE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.late(self.early(self.narrow(self.wide(x))))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[DdpEngine]:
    """DDP over gloo, alone, with buckets of 1.5 MiB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    joined = DdpEngine(make_case("ddp", "gloo", 1, ddp={"bucket_cap_mb": 1.5}))
    yield joined
    joined.close()


def test_rebuilt_sizes_are_read_back_and_hold_all_gradients(engine: DdpEngine) -> None:
    model = Crossed()
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    trainer = engine.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    first = trainer.describe()
    for _ in range(3):
        trainer.zero_grad()
        trainer.model(torch.randn(2, SIDE)).sum().backward()
        trainer.step(None)
    assert trainer.settled()
    found = trainer.describe()
    assert not first["buckets_rebuilt"]
    assert found["buckets_rebuilt"]
    # Gradients come as late (1 MiB), early (0.5), narrow (1), wide (2); a bucket closes once it holds 1.5 MiB.
    assert found["bucket_sizes_bytes"] == [1.5 * MIB, 3 * MIB]
    # Until then torch has all in one bucket.
    assert first["bucket_sizes_bytes"] == [gradient_bytes]
    assert sum(found["bucket_sizes_bytes"]) == gradient_bytes
    assert found["messages_per_step"] == 2
