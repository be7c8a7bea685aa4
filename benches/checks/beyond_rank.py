"""A rank of `benches.checks.beyond`: `ENGINE profile|kill FOLDER`. It writes what it saw into the folder."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

REDUCTION = re.compile("all_?reduce", re.IGNORECASE)
STEPS_BEFORE = 5
"""So that DDP's buckets are rebuilt."""


def main(engine: str, what: str, folder: Path) -> None:
    rank, model, optimizer, close = (ddp if engine == "ddp" else horovod)()

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()

    for _ in range(STEPS_BEFORE):
        step()
    (profile if what == "profile" else kill)(engine, rank, step, folder)
    close()


def ddp() -> tuple[int, nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(net())
    return dist.get_rank(), model, torch.optim.SGD(model.parameters(), lr=1e-3), dist.destroy_process_group


def horovod() -> tuple[int, nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    import horovod.torch as hvd

    hvd.init()
    model = net()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())
    return hvd.rank(), model, optimizer, hvd.shutdown


def net() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())))


def profile(engine: str, rank: int, step: Callable[[], None], folder: Path) -> None:
    """Events of one step that reduce, in torch's profile and in Horovod's timeline."""
    timeline = folder / "timeline.json"
    if engine == "horovod":
        import horovod.torch as hvd

        hvd.start_timeline(str(timeline))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    found = {"profiled": sum(bool(REDUCTION.search(event.name)) for event in profiler.events() or []), "timeline": 0}
    if engine == "horovod":
        hvd.stop_timeline()
        # A writer thread of Horovod's closes it a little later.
        time.sleep(1.0)
    if rank == 0:
        if engine == "horovod":
            # Rank 0 alone writes it. One process a tensor; its metadata names it.
            names = re.findall(r'"name": ?"((?:Allreduce|allreduce)[^"]*)"', timeline.read_text())
            found["timeline"] = len(set(names))
        (folder / "profile.json").write_text(json.dumps(found))


def kill(engine: str, rank: int, step: Callable[[], None], folder: Path) -> None:
    """Rank 1 kills itself, once; the others go on until they cannot."""
    killed, again = folder / "killed", folder / "again"
    if killed.exists():
        if rank == 1:
            again.write_text(str(time.time()))
        return
    if rank == 1:
        killed.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        step()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
