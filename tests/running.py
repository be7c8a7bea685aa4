"""Cases for real launches in the tests, and one call that launches them as the driver does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benches.driver import Driver
from benches.folder import open_study
from benches.record import Header
from benches.schedule import Turn
from benches.spec import Case, Contestant, Study, build, plain
from launchers.supervise import StopFlag
from launchers.tools import Tools

HERE = Path(__file__).resolve().parent
MIXED = {
    "name": "mixed",
    "factory": "zoo:Mixed",
    "batch": "zoo:pictures",
    "loss": "zoo:cross_entropy",
    "sample": "image",
}


class Silent:
    """Progress that nobody watches."""

    def started(self, *_: object) -> None:
        pass

    def ticked(self, *_: object) -> None:
        pass

    def ended(self, *_: object) -> None:
        pass


def make_case(engine: str, transport: str | None, ranks: int, **changes: Any) -> Case:
    """A case of the zoo's mixed model; `changes` replace whole entries."""
    content: dict[str, Any] = {
        "engine": engine,
        "transport": transport,
        "device": "cpu",
        "model": MIXED,
        "data": {"per_rank_batch": 4},
        "optimizer": {},
        "cluster": {"ranks_per_node": ranks, "mpi_yield_when_idle": True},
        "block_steps": 5,
        "limit_s": 120.0,
        "allow_oversubscribe": True,
    }
    if engine != "local":
        content[engine] = {}
    return build(Case, {**content, **changes})


def launch_case(case: Case, results: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 1) -> tuple[Header, Path]:
    """Launch one case for real, with tests/ as the folder that one calls from. Returns its record and folder."""
    # The parent of a launch may have been given ranks of its own.
    for name in [name for name in os.environ if name.startswith(("HOROVOD_", "OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(HERE)
    contestants = [{"name": case.cell, "case": plain(case)}]
    study = build(Study, {"name": "test", "contestants": contestants, "launches": 1, "rounds": rounds})
    folder = open_study(study, results)
    turn = Turn(Contestant(name=case.cell, case=case), 0)
    (header,) = Driver(folder, Tools(), Silent(), StopFlag()).launch([turn])
    return header, folder.launch(case, 0)
