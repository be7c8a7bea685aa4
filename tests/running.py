"""Cases for real launches in the tests, and one call that launches them as the driver does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benches.driver import Driver
from benches.folder import StudyFolder, open_study
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

    def started(self, turns: Sequence[Turn], number: int, total: int) -> None:
        pass

    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None:
        pass

    def ended(self, turn: Turn, header: Header) -> None:
        pass

    def told(self, text: str) -> None:
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


def open_cases(
    cases: Sequence[Case], results: Path, monkeypatch: pytest.MonkeyPatch, **study: Any
) -> tuple[StudyFolder, list[Turn]]:
    """A study of these cases, and launch 0 of each; one calls from tests/, in a shell like a fresh one."""
    # The parent of a launch may have been given ranks of its own.
    for name in [name for name in os.environ if name.startswith(("HOROVOD_", "OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(HERE)
    contestants = tuple(Contestant(name=f"{case.cell} {number}", case=case) for number, case in enumerate(cases))
    content = {"name": "test", "contestants": plain(contestants), "launches": 1, **study}
    folder = open_study(build(Study, content), results)
    return folder, [Turn(contestant, 0) for contestant in contestants]


def launch_case(case: Case, results: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 1) -> tuple[Header, Path]:
    """Launch one case for real. Returns its record and folder."""
    folder, (turn,) = open_cases([case], results, monkeypatch, rounds=rounds)
    with Driver(folder, Tools(), Silent(), StopFlag()) as driver:
        (header,) = driver.launch([turn])
    return header, folder.launch(turn.contestant, 0)
