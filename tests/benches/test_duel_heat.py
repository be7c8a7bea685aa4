"""A heat of launches whose one rank merely sleeps: turns, parks, limits and ends, without torch."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from running import HERE, Silent, make_case

from benches.clusters import Place
from benches.control import CONTROL, Control
from benches.heat import PROGRESS, Entry, Heat, clear
from benches.schedule import Turn
from benches.spec import Contestant
from launchers.processes import TOKEN, members
from launchers.spec import Command
from launchers.supervise import StopFlag

pytestmark = pytest.mark.timeout(120)
BLOCK_S = 0.2
CODE = f"""
import json, sys, time
from pathlib import Path
from benches import agent

def work(link):
    link.say(phase="warmup", block=0)
    blocks = 0
    while True:
        link.say(idle=blocks, rss=1000)
        order = link.order()
        if order["order"] == "finish":
            Path(sys.argv[1], "site").write_text(json.dumps(order["site"]))
            link.say(phase="done", block=0)
            return 0
        link.say(phase="timing", block=order["block"])
        begun = time.monotonic()
        time.sleep({BLOCK_S})
        with Path(sys.argv[1], "blocks").open("a") as stream:
            print(json.dumps({{**order, "begun": begun, "ended": time.monotonic()}}), file=stream)
        blocks += 1

sys.exit(agent.supervise(work, Path(sys.argv[1])))
"""


class Rig(Silent):
    """A heat of launches by number, each in a folder of its own, and its own progress."""

    def __init__(self, folder: Path, control: Control, limit_s: float = 60.0) -> None:
        self.folder, self.control = folder, control
        self.limit_s = limit_s
        self.engine, self.settings = "ddp", dict[str, Any]()
        self.stop = StopFlag()
        self.ticks: Callable[[dict[str, Any], int], None] = lambda _said, _waiting: None
        self.heat = Heat(control, self, self.stop)

    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None:
        self.ticks(said, waiting)

    def turns(self, count: int) -> list[Turn]:
        cases = [
            make_case(self.engine, "gloo", 1, seed=seed, limit_s=self.limit_s, **self.settings) for seed in range(count)
        ]
        return [Turn(Contestant(name=str(number), case=case), 0) for number, case in enumerate(cases)]

    def out(self, number: int) -> Path:
        return self.folder / str(number)

    def make(self, turn: Turn) -> Entry:
        out = self.out(int(turn.contestant.name))
        # A shell as the launcher, so that the agent is not the launcher itself.
        argv = ("sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", CODE, str(out))
        place = Place(host="127.0.0.2", facts={"kind": turn.contestant.name})
        return Entry(turn, out, Command(argv, cwd=str(HERE.parent)), self.control, place)

    def start(self, count: int, cores: int = 8) -> list[Turn]:
        return self.heat.start(self.turns(count), self.make, cores)

    def ran(self, number: int) -> list[dict[str, Any]]:
        """What the rank was told for each block, and when it ran."""
        path = self.out(number) / "blocks"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def states(self) -> list[str]:
        """Of the rank of each launch."""
        return [self.rank(entry).status() for entry in self.heat.entries]

    def rank(self, entry: Entry) -> psutil.Process:
        marked = [psutil.Process(pid) for pid in members(entry.name)]
        (found,) = [one for one in marked if not one.children()]
        assert found.environ()[TOKEN] == entry.name
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Control() as control:
        made = Rig(tmp_path, control)
        with made.heat:
            yield made
        assert not any(members(entry.name) for entry in made.heat.entries)


def test_each_runs_its_blocks_alone_in_the_order_of_the_rounds(rig: Rig) -> None:
    order: Sequence[Sequence[int]] = [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    assert rig.start(3) == []
    assert rig.states() == [psutil.STATUS_STOPPED] * 3
    rig.heat.run(order)
    assert rig.states() == [psutil.STATUS_STOPPED] * 3
    headers = rig.heat.finish()
    assert [json.loads((rig.out(number) / "site").read_text()) for number in range(3)] == [
        {"kind": str(number)} for number in range(3)
    ]
    ran = [rig.ran(number) for number in range(3)]
    for number in range(3):
        assert [block["block"] for block in ran[number]] == [0, 1, 2]
        assert [block["place"] for block in ran[number]] == [row.index(number) for row in order]
        assert all(block["parked_s"] > 0 for block in ran[number])
    times = sorted((block["begun"], block["ended"], number) for number in range(3) for block in ran[number])
    assert [number for _, _, number in times] == [number for row in order for number in row]
    assert all(before[1] <= after[0] for before, after in pairwise(times)), "no two blocks overlap"
    # The ranks write no record of their own here.
    assert {header.reason for header in headers} == {"the launcher ended well but no rank wrote a record"}
    for number in range(3):
        assert not (rig.out(number) / CONTROL).exists()
        assert json.loads((rig.out(number) / PROGRESS).read_text())["phase"] == "done"


def test_one_that_is_alone_is_never_stopped(rig: Rig) -> None:
    rig.start(1)
    rig.heat.run([[0], [0], [0]])
    rig.heat.finish()
    assert [block["parked_s"] for block in rig.ran(0)] == [0] * 3


def test_waiting_does_not_count_against_the_limit(rig: Rig) -> None:
    rig.limit_s = 5.0
    rig.start(2)
    before = time.monotonic()
    while time.monotonic() < before + 6:
        rig.heat._watch(rig.heat.entries[0])
    rig.heat.run([[0, 1], [1, 0]])
    headers = rig.heat.finish()
    assert [header.status for header in headers] == ["failed", "failed"], "no record, but no timeout"
    assert [len(rig.ran(number)) for number in range(2)] == [2, 2]


def test_one_that_hangs_in_its_block_ends_at_its_limit_and_the_others_go_on(rig: Rig) -> None:
    rig.limit_s = 4.0
    rig.start(2)

    frozen: list[Entry] = []

    def freeze(said: dict[str, Any], _waiting: int) -> None:
        if said.get("phase") == "timing" and not frozen:
            frozen.append(rig.heat.entries[0])
            rig.rank(frozen[0]).suspend()

    rig.ticks = freeze
    rig.heat.run([[0, 1], [0, 1]])
    one, other = rig.heat.finish()
    assert one.status == "timeout"
    assert str(one.reason).startswith("not done within its limit of 4 s")
    assert len(rig.ran(1)) == 2
    assert other.status == "failed"


@pytest.mark.parametrize("who", ["rank", "agent"])
def test_one_that_dies_while_it_is_parked_is_left_out(rig: Rig, who: str) -> None:
    rig.start(3)
    rig.heat.run([[0, 1, 2]])
    rank = rig.rank(rig.heat.entries[1])
    victim = rank if who == "rank" else rank.parent()
    assert victim is not None
    victim.kill()
    rig.heat.run([[0, 1, 2], [2, 1, 0]])
    headers = rig.heat.finish()
    assert [len(rig.ran(number)) for number in range(3)] == [3, 1, 3]
    assert headers[1].status == "failed"
    assert str(headers[1].reason).startswith("rank 0: ")
    assert who == "agent" or headers[1].reason == "rank 0: killed by SIGKILL in timing"


@pytest.mark.parametrize(("tuning", "together"), [(False, 2), (True, 1)])
def test_only_as_many_start_at_once_as_keep_the_cores_busy_and_let_one_tune_itself(
    rig: Rig, tuning: bool, together: int
) -> None:
    most = []
    rig.ticks = lambda _said, _waiting: most.append(
        sum(not entry.idle and not entry.ended for entry in rig.heat.entries)
    )
    if tuning:
        rig.engine, rig.settings = "horovod", {"horovod": {"autotune": True}}
    rig.start(4, cores=1)
    assert max(most) == together
    assert rig.states() == [psutil.STATUS_STOPPED] * 4
    assert len(rig.heat.finish()) == 4


def test_where_there_is_no_memory_the_first_runs_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benches.heat.psutil.virtual_memory", lambda: SimpleNamespace(available=100, total=1000))
    left = rig.start(3)
    assert [turn.contestant.name for turn in left] == ["1", "2"]
    rig.heat.run([[0], [0]])
    assert len(rig.heat.finish()) == 1
    assert [block["parked_s"] for block in rig.ran(0)] == [0, 0]


@pytest.mark.parametrize(("kind", "resident"), [("local", 80), ("virtual", 80), ("hosts", 20)])
def test_memory_is_that_of_the_ranks_on_one_machine(kind: str, resident: int) -> None:
    cluster = {"name": kind, "nodes": 4, "ranks_per_node": 2} if kind != "local" else {"ranks_per_node": 8}
    turn = SimpleNamespace(case=make_case("ddp", "gloo", 0, cluster=cluster))
    entry: Any = SimpleNamespace(turn=turn, said=[{"rss": 10}] * 8)
    assert Entry.memory_bytes.fget(entry) == resident  # type: ignore[attr-defined]


@pytest.mark.parametrize("urgent", [False, True])
def test_a_stop_ends_all_also_those_that_are_parked(rig: Rig, urgent: bool) -> None:
    rig.start(3)
    rig.ticks = lambda said, _: rig.stop.signals.extend(
        [signal.SIGINT] * (1 + urgent) if said.get("phase") == "timing" and not rig.stop.signals else []
    )
    rig.heat.run([[0, 1, 2]] * 100)
    headers = rig.heat.finish()
    assert [(header.status, header.reason) for header in headers] == [("interrupted", "interrupted by SIGINT")] * 3


@pytest.mark.parametrize(("later_s", "status"), [(1.0, "interrupted"), (60.0, "failed")])
def test_what_failed_just_before_the_stop_was_ended_by_the_same_hand(rig: Rig, later_s: float, status: str) -> None:
    """Slurm signals ranks, their launchers and the driver in no order."""
    rig.start(1)
    (entry,) = rig.heat.entries
    rig.rank(entry).terminate()
    rig.heat._until(entry, lambda: False)
    rig.stop.signals.append(signal.SIGTERM)
    rig.stop.since = entry.launch.ended_at + later_s
    (header,) = rig.heat.finish()
    assert header.status == status
    reasons = {"interrupted": "interrupted by SIGTERM", "failed": "rank 0: killed by SIGTERM in "}
    assert str(header.reason).startswith(reasons[status])


def test_an_interrupted_try_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    names = (
        "logs/rank0.log",
        "exits/rank0.json",
        CONTROL,
        PROGRESS,
        "untraced.json",
        "samples.parquet",
        "curve.parquet",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    clear(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
