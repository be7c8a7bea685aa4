"""The check of kills: what is drawn, and which process is which."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from benches.checks import duels, kills
from benches.checks.kills import Kill, Result, Seen
from benches.config import compose

OUT = Path("/results/kill0/launches/abc/0")
WORKER = ("-m", "benches.worker", "case.yaml", "--out", str(OUT))


def kill(role: str, rank: int = 0) -> Kill:
    return Kill(0, role, "running", "ddp/gloo", "horovod/mpi", rank, 2)


def processes(launcher: tuple[str, ...], *flags: str) -> list[Seen]:
    """A driver with a guard, its launcher, and two agents with a rank each; and another launch beside it."""
    workers = [
        Seen(pid, parent, ("python", *flags, *WORKER)) for pid, parent in ((30, 20), (31, 20), (40, 30), (41, 31))
    ]
    other = ("python", "-m", "benches.worker", "case.yaml", "--out", "/results/kill0/launches/def/0")
    return [
        Seen(5, 1, ("python", "-m", "benches", "run")),
        Seen(10, 5, ("python", "-S", "-E", "-m", "launchers.guard", "5", "token", "/", *launcher, "python", *WORKER)),
        Seen(20, 10, (*launcher, "python", *WORKER)),
        *workers,
        Seen(50, 20, other),
        Seen(51, 50, other),
    ]


@pytest.mark.parametrize(
    "launcher", [("python", "-m", "torch.distributed.run"), ("mpirun", "-np", "2"), ("horovodrun",)]
)
@pytest.mark.parametrize("flags", [(), ("-u",)])
def test_processes_are_told_apart(launcher: tuple[str, ...], flags: tuple[str, ...]) -> None:
    seen = processes(launcher, *flags)
    found = {role: kills.pick(kill(role), seen, 5, OUT) for role in kills.ROLES}
    assert found == {"rank": 40, "agent": 30, "launcher": 20, "driver": 5}
    assert [kills.pick(kill(role, 1), seen, 5, OUT) for role in ("rank", "agent")] == [41, 31]


def test_an_agent_without_its_rank_is_not_there_yet() -> None:
    seen = [one for one in processes(("mpirun",)) if one.pid != 40]
    assert kills.pick(kill("rank", 1), seen, 5, OUT) is None
    assert kills.pick(kill("launcher"), [], 5, OUT) is None


def test_every_role_in_every_state_is_drawn_and_the_seed_fixes_it() -> None:
    drawn = kills.plan(20, seed=1)
    kinds = Counter((one.role, one.state) for one in drawn)
    assert set(kinds) == set(itertools.product(kills.ROLES, kills.STATES))
    assert set(kinds.values()) == {2, 3}
    assert all(one.victim != one.other and one.block < kills.ROUNDS for one in drawn)
    assert drawn == kills.plan(20, seed=1) != kills.plan(20, seed=2)


def test_what_is_typed_is_a_duel_of_two(tmp_path: Path) -> None:
    resolved = compose(kills.study_words(kill("rank"), tmp_path))
    assert {one.case.cell for one in resolved.study.contestants} == {"ddp/gloo", "horovod/mpi"}
    assert resolved.study.schedule == "duel"
    assert (resolved.study.launches, resolved.study.rounds) == (kills.LAUNCHES, kills.ROUNDS)
    assert resolved.results == tmp_path


def test_one_fault_fails_the_check() -> None:
    good, bad = Result(kill("rank"), "rank 0: killed", []), Result(kill("agent"), "", ["left"])
    assert duels.status(kills.lines([good]), quick=False) == 0
    assert duels.status(kills.lines([good, bad]), quick=False) == 1
    assert duels.status(kills.lines([]), quick=True) == 1


@pytest.mark.parametrize(
    ("role", "reason", "told"),
    [
        ("rank", "rank 1: killed by SIGKILL in timing", True),
        ("rank", "rank 1: killed by SIGTERM in timing", False),
        ("rank", "", False),
        ("agent", "rank 1: its agent is gone in timing", True),
        ("agent", "rank 0: RuntimeError: Connection closed by peer in timing", False),
        ("launcher", "the launcher was killed by SIGKILL", True),
        ("launcher", "rank 1: its agent is gone in timing", False),
        ("driver", kills.FINISHED, True),
        ("driver", "run again: rank 1: killed by SIGKILL in timing", False),
    ],
)
def test_a_record_that_names_the_consequence_alone_does_not_tell(role: str, reason: str, told: bool) -> None:
    assert kills.tells(role, reason) is told
