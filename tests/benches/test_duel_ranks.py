"""Duels of real ranks: who ran when, what each record says of it, and what becomes of the others when one dies."""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from running import Silent, make_case, open_cases

from benches import rank, rankenv, record
from benches.control import CONTROL
from benches.driver import Driver, _wants_room, due
from benches.folder import StudyFolder
from benches.heat import PROGRESS, Heat
from benches.record import Header
from benches.schedule import Turn, orders
from benches.spec import Case
from launchers.processes import members
from launchers.supervise import StopFlag
from launchers.tools import Tools

pytestmark = pytest.mark.timeout(300)
CELLS = [("ddp", "gloo"), ("horovod", "gloo"), ("horovod", "mpi")]
ROUNDS = 3


class Told(Silent):
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def told(self, text: str) -> None:
        self.texts.append(text)


class Killer(Told):
    """Kills rank 1 of a launch, or its agent, once that launch has run a block and is stopped."""

    def __init__(self, victim: Turn, agent: bool) -> None:
        super().__init__()
        self.victim, self.agent, self.done = victim, agent, False

    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None:
        if self.done or turn == self.victim or said.get("phase") != "timing" or said["block"] < 1:
            return
        for process in psutil.process_iter():
            if self._is_victim(process):
                psutil.Process(process.ppid() if self.agent else process.pid).kill()
                self.done = True

    def _is_victim(self, process: psutil.Process) -> bool:
        try:
            if process.status() != psutil.STATUS_STOPPED:
                return False
            ours = any(f"/launches/{self.victim.contestant.key}/" in word for word in process.cmdline())
            return ours and rankenv.rank(process.environ()) == 1
        except psutil.Error:
            return False


def duel(folder: StudyFolder, turns: Sequence[Turn], progress: Silent) -> list[Header]:
    with Driver(folder, Tools(), progress, StopFlag()) as driver:
        return driver.launch(turns)


def pair(**changes: Any) -> list[Case]:
    """Two of the cheapest contestants."""
    return [make_case("ddp", "gloo", 1, seed=seed, **changes) for seed in (1, 2)]


@pytest.mark.horovod
def test_three_cells_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]) -> None:
    cases = [make_case(*cell, 2) for cell in CELLS]
    folder, turns = open_cases(cases, tmp_path, monkeypatch, rounds=ROUNDS)
    headers = duel(folder, turns, Silent())
    assert [(header.status, header.reason) for header in headers] == [("ok", None)] * 3
    assert [header.case_id for header in headers] == [case.id for case in cases]
    order = orders(3, ROUNDS, f"{folder.study.hash} 0")
    keys = {turn.contestant.key for turn in turns}
    for index, header in enumerate(headers):
        assert [block.place for block in header.blocks] == [row.index(index) for row in order]
        assert all(block.parked_s > 0 for block in header.blocks)
        assert set(header.beside) == keys - {turns[index].contestant.key}
        assert [len(of_rank) for of_rank in header.load] == [ROUNDS, ROUNDS]
        assert all(load.own_s > 0 and 0 < load.wall_s < 60 for of_rank in header.load for load in of_rank)
    for turn in turns:
        out = folder.launch(turn.contestant, 0)
        assert not (out / CONTROL).exists()
        assert (out / PROGRESS).exists()
        timed = [row for row in record.read_samples(out).to_pylist() if row["kind"] == "step"]
        assert {row["block"] for row in timed} == set(range(ROUNDS))
        assert len(timed) == 2 * ROUNDS * turn.case.block_steps, "the untimed steps are no samples"
    assert not any(members(token) for token in tokens)


def test_only_behind_a_park_are_there_untimed_steps() -> None:
    said = SimpleNamespace(say=lambda **_: None)
    launch = rank.Launch(pair()[0], argparse.Namespace(), said)  # type: ignore[arg-type]
    launch.engine = SimpleNamespace(device=torch.device("cpu"))  # type: ignore[assignment]
    launch.resume_steps = 7
    ran: list[tuple[int, int]] = []
    timer = SimpleNamespace(run_block=lambda block, steps, untimed: ran.append((block, untimed)))
    for block, parked_s in enumerate([0.0, 0.01, 5.0]):
        launch._run_block(timer, {"block": block, "place": 0, "parked_s": parked_s})  # type: ignore[arg-type]
    assert ran == [(0, 0), (1, 7), (2, 7)]


def test_whoever_waits_is_stopped_for_as_long_as_the_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, turns = open_cases(pair(block_steps=100), tmp_path, monkeypatch, rounds=4)
    headers = duel(folder, turns, Silent())
    done = [0, 0]
    since_s = [0.0, 0.0]
    for index in chain.from_iterable(orders(2, 4, f"{folder.study.hash} 0")):
        assert headers[index].blocks[done[index]].parked_s >= since_s[index]
        since_s[index] = 0.0
        since_s[1 - index] += headers[index].load[0][done[index]].wall_s
        done[index] += 1
    assert done == [4, 4]


@pytest.mark.horovod
@pytest.mark.parametrize("agent", [False, True], ids=["rank", "agent"])
def test_one_that_is_killed_while_it_is_parked_fails_alone(
    agent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> None:
    cases = [make_case(*cell, 2) for cell in CELLS[:2]]
    folder, turns = open_cases(cases, tmp_path, monkeypatch, rounds=6)
    progress = Killer(turns[1], agent)
    other, victim = duel(folder, turns, progress)
    assert progress.done
    assert (victim.status, victim.blocks) == ("failed", [])
    assert str(victim.reason).startswith("rank 1: ")
    assert agent or victim.reason == "rank 1: killed by SIGKILL in timing"
    assert (other.status, len(other.blocks)) == ("ok", 6)
    assert not any(members(token) for token in tokens)


def test_those_without_memory_run_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benches.heat.psutil.virtual_memory", lambda: SimpleNamespace(available=0, total=1))
    folder, turns = open_cases(pair(), tmp_path, monkeypatch, rounds=2)
    progress = Told()
    headers = duel(folder, turns, progress)
    assert [(header.status, header.case_id) for header in headers] == [("ok", turn.case.id) for turn in turns]
    assert all(header.beside == [] for header in headers)
    assert {block.parked_s for header in headers for block in header.blocks} == {0.0}
    assert progress.texts == ["too little memory for all at once: ddp/gloo 1 run after the others"]


def test_later_launches_of_who_passed_the_whole_gate_pass_a_brief_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, turns = open_cases(pair(), tmp_path, monkeypatch, launches=2, rounds=1, control=False, confirm=False)
    with Driver(folder, Tools(), Silent(), StopFlag()) as driver:
        assert driver.run()
    for turn in turns:
        first, second = (record.read(folder.launch(turn.contestant, launch)) for launch in range(2))
        assert first.parity is not None
        assert second.parity is not None
        assert first.parity.error is not None
        assert {check.name for check in first.parity.checks} > {"reduction", "projection", "local"}
        assert (second.parity.passed, second.parity.error) == (True, None)
        assert [check.name for check in second.parity.checks] == ["learning_rate", "initial_weights", "samples"]


FAILED = SimpleNamespace(status="failed", reason="out of memory", blocks=[], parity=None)


class OneByOne:
    """Stands for a heat: it has memory for one launch, which ends as `found`."""

    found: Any = FAILED
    blocks = 0

    def __init__(self, *_: object) -> None:
        self.entries: list[Any] = []

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, turns: list[Turn], *_: object) -> list[Turn]:
        self.entries = [SimpleNamespace(turn=turn, blocks=self.blocks) for turn in turns[:1]]
        return turns[1:]

    def run(self, _orders: object) -> None:
        pass

    def finish(self) -> list[Any]:
        return [self.found]


def header_of(parity: record.Parity | None, status: str = "ok") -> Any:
    return SimpleNamespace(status=status, reason=None, blocks=[], parity=parity)


def test_the_gate_is_brief_for_all_launches_of_a_heat_or_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    folder, turns = open_cases(pair(), tmp_path, monkeypatch)
    monkeypatch.setattr("benches.driver.Heat", OneByOne)
    monkeypatch.setattr(Driver, "_command", lambda _self, _turn, _place, brief: told.append(brief))
    passed = record.Parity(passed=True, error=0.0, bound=1e-7)
    with Driver(folder, Tools(), Told(), StopFlag()) as driver:
        for header in (header_of(None, "failed"), header_of(passed, "failed"), header_of(None), header_of(passed)):
            monkeypatch.setattr(OneByOne, "found", header)
            driver.launch(turns[:1])
        driver.launch(turns[:1])
        driver.launch(turns)
        driver.launch(turns)
    assert told == [*[False] * 4, True, *[False, False], *[True, True]]


class TestUsedUp:
    """A study whose budget is used up starts nothing more, says so, and goes on with the same command."""

    @pytest.fixture(autouse=True)
    def study(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.progress = Told()
        self.folder, self.turns = open_cases(pair(), tmp_path, monkeypatch, budget_s=90.0, retries=3)
        monkeypatch.setattr("benches.driver.Heat", OneByOne)
        monkeypatch.setattr(Driver, "_command", lambda *_: None)
        with Driver(self.folder, Tools(), self.progress, StopFlag()) as self.driver:
            yield

    def test_before_a_heat(self) -> None:
        self.driver.deadline = -math.inf
        assert self.driver.run() is True
        assert self.progress.texts == [
            "study.budget_s=90 is used up: the same command goes on with what is missing, for as long again"
        ]
        assert len(due(self.folder)[0]) == 2

    def test_before_a_retry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried: list[int] = []

        def launch(turns: Sequence[Turn]) -> list[Any]:
            tried.append(len(turns))
            self.driver.deadline = -math.inf
            return [FAILED] * len(turns)

        monkeypatch.setattr(self.driver, "launch", launch)
        self.driver._heat(self.turns)
        assert tried == [2]
        assert self.progress.texts == []

    @pytest.mark.parametrize(("deadline", "launches"), [(-math.inf, 1), (math.inf, 2)])
    def test_before_those_without_memory(self, deadline: float, launches: int) -> None:
        self.driver.deadline = deadline
        assert len(self.driver.launch(self.turns)) == launches
        assert len(self.progress.texts) == launches - 1


def test_memory_of_other_machines_is_not_judged_by_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benches.heat.psutil.virtual_memory", lambda: SimpleNamespace(available=0, total=1))
    for kind, room in (("local", False), ("virtual", False), ("hosts", True), ("slurm", True), ("kubernetes", True)):
        case = SimpleNamespace(cluster=SimpleNamespace(name=kind))
        entry: Any = SimpleNamespace(turn=SimpleNamespace(case=case), memory_bytes=1, ended=False)
        heat = Heat(None, Silent(), StopFlag())  # type: ignore[arg-type]
        heat.entries = [entry]
        assert heat._has_room() is room


def test_a_gpu_that_is_full_is_left_to_others_also_after_the_first_block() -> None:
    full, killed = (
        SimpleNamespace(status="failed", reason=f"rank 0: {cause}")
        for cause in ("CUDA out of memory. Tried to allocate 2 GiB", "killed by SIGKILL in timing")
    )
    assert [_wants_room(full, begun) for begun in (False, True)] == [True, True]  # type: ignore[arg-type]
    assert [_wants_room(killed, begun) for begun in (False, True)] == [True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize(("blocks", "launches"), [(0, [2, 1, 1]), (1, [2])])
def test_only_who_had_run_no_block_runs_again_alone(
    blocks: int, launches: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, killed = (
        Told(),
        SimpleNamespace(status="failed", reason="rank 0: killed by SIGKILL in warmup", parity=None),
    )
    folder, turns = open_cases(pair(), tmp_path, monkeypatch, retries=0)
    monkeypatch.setattr("benches.driver.Heat", OneByOne)
    monkeypatch.setattr(OneByOne, "found", killed)
    monkeypatch.setattr(OneByOne, "blocks", blocks)
    monkeypatch.setattr(Driver, "_command", lambda *_: None)
    with Driver(folder, Tools(), progress, StopFlag()) as driver:
        asked: list[int] = []
        launch = driver.launch

        def counted(turns: Sequence[Turn]) -> list[Any]:
            asked.append(len(turns))
            for turn in turns:
                folder.launch(turn.contestant, turn.launch).mkdir(parents=True, exist_ok=True)
            return launch(turns)

        monkeypatch.setattr(driver, "launch", counted)
        driver._heat(turns)
    assert asked == launches
    assert any("runs again alone" in text for text in progress.texts) is not bool(blocks)


class Interrupter(Silent):
    """Presses Ctrl-C at one moment."""

    def __init__(self, at: str) -> None:
        self.at, self.stop = at, StopFlag()

    def started(self, turns: Sequence[Turn], number: int, total: int) -> None:
        self._perhaps("before the first start")

    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None:
        self._perhaps("while the first starts")
        if said.get("phase") == "timing":
            self._perhaps("in a block")

    def _perhaps(self, moment: str) -> None:
        if moment == self.at and not self.stop.signals:
            self.stop.signals.append(signal.SIGINT)


@pytest.mark.parametrize(
    ("at", "records"),
    [
        ("before the first start", []),
        ("while the first starts", ["interrupted"]),
        ("in a block", ["interrupted", "interrupted"]),
    ],
)
def test_a_study_is_interrupted(
    at: str, records: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> None:
    # So that the second one waits for the first.
    monkeypatch.setattr("benches.driver.cores", lambda: 0)
    folder, turns = open_cases(pair(), tmp_path, monkeypatch, rounds=50)
    progress = Interrupter(at)
    with Driver(folder, Tools(), progress, progress.stop) as driver:
        assert driver.run() is False
    outs = [folder.launch(turn.contestant, 0) for turn in turns]
    found = [record.read(out) for out in outs if (out / record.HEADER).exists()]
    assert [header.status for header in found] == records
    assert {header.reason for header in found} <= {"interrupted by SIGINT"}
    assert not any(members(token) for token in tokens)
    assert not any((out / CONTROL).exists() for out in outs)
