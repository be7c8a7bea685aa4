"""The driver: it takes a study's launches in turn, supervises each, and sees that each leaves a record. Seconds."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from analysis import summary as summaries
from analysis import table
from analysis.further import GIVE_UP_AFTER, further
from analysis.headline import standings
from benches import knobs, record
from benches.clusters import Place, Site
from benches.control import Control
from benches.folder import STUDY, StudyFolder
from benches.heat import Entry, Heat, Progress
from benches.schedule import Turn, heats, orders, turns
from benches.spec import Case
from launchers import choose
from launchers.nodes import Nodes
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.spec import Command, LaunchSpec
from launchers.supervise import CHECKOUT, StopFlag
from launchers.tools import Tools

OWN_HEAT = "out of memory", "can't allocate memory", "busy or unavailable"
"""What ends a launch beside others, and may not when it is alone: memory, exclusive GPUs."""
KILLED = "killed by SIGKILL"
"""Likewise while a launch starts up, when memory grows; later it is whoever kills."""


class Driver:
    """Runs one study. Use as a context manager."""

    def __init__(
        self, folder: StudyFolder, tools: Tools, progress: Progress, stop: StopFlag, slurm: SlurmSpec | None = None
    ) -> None:
        """slurm: what was asked of it, where it is the cluster."""
        self.study, self.folder, self.tools = folder.study, folder, tools
        self.progress, self.stop = progress, stop
        self.failures: Counter[str] = Counter()
        self.gated: set[str] = set()
        """Keys of the contestants of which a launch has passed the whole parity gate under this driver."""
        self.begun: set[str] = set()
        """Keys of the contestants whose last launch was told to run a block."""
        self.control = Control()
        self.site = Site(self.study, progress.told, slurm)
        self.deadline = time.monotonic() + (self.study.budget_s or math.inf)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # First, while the addresses are there at which it listens.
            self.control.close()
        finally:
            self.site.close()

    def run(self) -> bool:
        """Run every launch that is due, as far as the budget goes. Returns False when it was interrupted."""
        while turns := self._due():
            done, launch = 0, turns[0].launch
            for heat in heats(self.study, turns):
                if self._over():
                    return self._end_early()
                if heat[0].launch > launch:
                    launch = heat[0].launch
                    self._tell_standing()
                alive = [turn for turn in heat if self.failures[turn.contestant.key] < GIVE_UP_AFTER]
                if alive:
                    self.progress.started(alive, done, len(turns))
                    self._heat(alive)
                done += len(heat)
        return not self.stop.is_set()

    def _over(self) -> bool:
        """Whether no launch may start any more."""
        return self.stop.is_set() or time.monotonic() > self.deadline

    def _end_early(self) -> bool:
        if not self.stop.is_set():
            self.progress.told(
                f"study.budget_s={self.study.budget_s:g} is used up: the same command goes on with what is missing, "
                "for as long again"
            )
        return not self.stop.is_set()

    def _due(self) -> list[Turn]:
        turns, why = due(self.folder, {key for key, count in self.failures.items() if count >= GIVE_UP_AFTER})
        if why and turns:
            self.progress.told(why)
        return turns

    def _tell_standing(self) -> None:
        """The ratios so far, with their intervals."""
        for line in standings(summaries.reduce(table.read(self.folder.path))):
            self.progress.told(line)

    def _heat(self, heat: list[Turn]) -> None:
        for turn, header in zip(heat, self.launch(heat), strict=False):  # an early end leaves some unstarted
            tries = self.study.retries
            crowded_out = len(heat) > 1 and _wants_room(header, turn.contestant.key in self.begun)
            if crowded_out and not self._over():
                self.progress.told(f"{turn.contestant.name}: {header.reason}; it runs again alone")
                tries += 1
            for _ in range(tries):
                if header.status in ("ok", "interrupted") or self._over():
                    break
                self.folder.set_aside(turn.contestant, turn.launch)
                # None where it was interrupted before it started.
                header = next(iter(self.launch([turn])), header)
            self.progress.ended(turn, header)
            self._count(turn, header)

    def launch(self, turns: Sequence[Turn]) -> list[record.Header]:
        """Run launches side by side, those that find no memory afterwards; their records, in the same order."""
        # All commands first: one that cannot be made must not leave another launch started.
        places = {id(turn): self.site.place(turn.case) for turn in turns}
        # Whole for all that are compared or for none, since it leaves a process with other memory.
        brief = all(turn.contestant.key in self.gated for turn in turns)
        commands = {id(turn): self._command(turn, places[id(turn)], brief) for turn in turns}

        def make(turn: Turn) -> Entry:
            out = self.folder.launch(turn.contestant, turn.launch)
            return Entry(turn, out, commands[id(turn)], self.control, places[id(turn)])

        found: dict[int, record.Header] = {}
        left = list(turns)
        while left:
            with Heat(self.control, self.progress, self.stop) as heat:
                started, rest = left, heat.start(left, make, cores())
                started = started[: len(heat.entries)]
                if not started:
                    break
                heat.run(orders(len(started), self.study.rounds, f"{self.study.hash} {started[0].launch}"))
                found |= {id(turn): header for turn, header in zip(started, heat.finish(), strict=True)}
                self.gated |= {turn.contestant.key for turn in started if _passed(found[id(turn)])}
                self.begun -= {turn.contestant.key for turn in started}
                self.begun |= {entry.turn.contestant.key for entry in heat.entries if entry.blocks}
            left = [] if self._over() else rest
            if left:
                names = ", ".join(turn.contestant.name for turn in left)
                self.progress.told(f"too little memory for all at once: {names} run after the others")
        return [found[id(turn)] for turn in turns if id(turn) in found]

    def _command(self, turn: Turn, place: Place, brief: bool) -> Command:
        out, file = self.folder.launch(turn.contestant, turn.launch), self.folder.case_file(turn.case)
        return command_for(turn, file, out, self.study.rounds, self.tools, place.nodes, brief)

    def _count(self, turn: Turn, header: record.Header) -> None:
        key, failed = turn.contestant.key, header.status != "ok"
        self.failures[key] = self.failures[key] + 1 if failed else 0
        # The gate is deterministic: another launch would fail it too.
        if header.parity is not None and not header.parity.passed:
            self.failures[key] = GIVE_UP_AFTER


def _passed(header: record.Header) -> bool:
    """Whether this launch was sound, and so was its gate."""
    return header.status == "ok" and header.parity is not None and header.parity.passed


def due(folder: StudyFolder, given_up: AbstractSet[str] = frozenset()) -> tuple[list[Turn], str]:
    """Launches that have no record yet, and why where the study asks for more than it began with.

    given_up: keys of contestants that get no more launches.
    """
    study = folder.study
    missing = _missing(folder, turns(study, range(study.launches)), given_up)
    if missing or not (folder.path / STUDY).exists():
        return missing, ""
    records = table.read(folder.path)
    # Another study under this name is refused by whoever opens the folder.
    more = further(records) if records.study.hash == study.hash else None
    return (_missing(folder, turns(study, more.launches, more.contestants), given_up), more.why) if more else ([], "")


def _missing(folder: StudyFolder, wanted: Iterable[Turn], given_up: AbstractSet[str]) -> list[Turn]:
    able = (turn for turn in wanted if turn.contestant.key not in given_up)
    return [turn for turn in able if not folder.has_record(turn.contestant, turn.launch)]


def cores() -> int:
    """Of this host, as far as this process may use them."""
    return len(os.sched_getaffinity(0))


def _wants_room(header: record.Header, begun: bool) -> bool:
    """Whether it may have failed for want of room; begun: it had been told to run a block."""
    signs = OWN_HEAT if begun else (*OWN_HEAT, KILLED)
    return header.status == "failed" and any(sign in (header.reason or "") for sign in signs)


def command_for(
    turn: Turn,
    case_file: Path,
    out: Path,
    rounds: int,
    tools: Tools,
    nodes: Nodes | SlurmNodes | None = None,
    brief: bool = False,
) -> Command:
    """The command of one launch: as `plan` shows it and `run` starts it first.

    nodes: where; None: this machine. brief: that another launch of this case has passed the whole parity gate.
    """
    args = ["-m", "benches.worker", str(case_file), "--out", str(out), "--rounds", str(rounds)]
    args += ["--launch", str(turn.launch), *(["--gate", "brief"] if brief else [])]
    return start_ranks(turn.case, tuple(args), tools, nodes)


def start_ranks(case: Case, args: tuple[str, ...], tools: Tools, nodes: Nodes | SlurmNodes | None = None) -> Command:
    """The command that starts the ranks of a case, each of them the interpreter with `args`. nodes: as above."""
    spec = LaunchSpec(
        python=case.python or sys.executable,
        args=args,
        nodes=case.cluster.nodes,
        ranks_per_node=case.cluster.ranks_per_node,
        cwd=str(Path.cwd()),
        env=environment(case),
        hidden=knobs.hidden(os.environ),
        yield_when_idle=case.cluster.mpi_yield_when_idle,
        as_root=os.geteuid() == 0,
    )
    return choose.command(case, spec, tools, nodes)


def environment(case: Case) -> dict[str, str]:
    """Variables of every rank: threads and import path are ours and the same for all contestants."""
    threads = str(case.cluster.threads_per_rank)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    # Ours first, so that a user's `analysis/` cannot shadow it; last the folder one calls from, for one's own model.
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = os.pathsep.join(dict.fromkeys([str(CHECKOUT), *own, str(Path.cwd())]))
    ours = {**dict.fromkeys(names, threads), "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    # Named one by one: launchers differ in what they hand on; mpirun needs names, and horovodrun replaces one of them.
    return {**knobs.carried(os.environ), **ours, **case.cluster.env}
