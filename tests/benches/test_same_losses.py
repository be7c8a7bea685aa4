"""Training itself: fifty steps of ResNet-18 give the same losses under every engine and transport, to the last bit."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from running import HERE

from benches import record
from benches.config import compose
from benches.driver import command_for
from benches.schedule import Turn
from benches.spec import Contestant, dump
from launchers.supervise import run
from launchers.tools import Tools

STEPS = 50
CELLS = {"ddp-gloo": ("ddp", "gloo"), "horovod-gloo": ("horovod", "gloo"), "horovod-mpi": ("horovod", "mpi")}
WORDS = ["model=resnet18_64", "data.per_rank_batch=2", "device=cpu", "cluster.ranks_per_node=2", "limit_s=240"]
WORDS += ["allow_oversubscribe=true", "block_steps=1", "study.control=false"]


def losses(name: str, folder: Path) -> list[float | None]:
    """Losses of rank 0 over the first steps, by the worker as one starts it by hand."""
    engine, transport = CELLS[name]
    case = compose([*WORDS, f"engine={engine}", f"transport={transport}"]).study.contestants[0].case
    file, out = folder / f"{name}.yaml", folder / name
    file.write_text(dump(case))
    command = command_for(Turn(Contestant(name=name, case=case), 0), file, out, 1, Tools())
    command = replace(command, argv=(*command.argv, "--losses", str(STEPS)))
    outcome = run(command, log=folder / f"{name}.log", limit_s=case.limit_s, token=secrets.token_hex(8))
    assert outcome.status == "ok", (folder / f"{name}.log").read_text()
    header = record.read(out)
    assert header.world_size == 2
    assert header.losses is not None
    return header.losses


@pytest.mark.horovod
def test_fifty_losses_are_equal_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A sum of two is free of order, and a half of it exact, so that nothing may differ at world size 2.
    monkeypatch.chdir(HERE)
    found = {name: losses(name, tmp_path) for name in CELLS}
    first = found["ddp-gloo"]
    assert len(first) == STEPS
    assert None not in first
    assert first[-1] < first[0] / 10  # type: ignore[operator]
    assert found == dict.fromkeys(CELLS, first)
