"""A heat: launches that are alive together and take turns, a block each, while the others are stopped. Seconds.

Start-ups overlap, for they are not timed. From then on one launch runs at a time.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from benches import record
from benches.clusters import Place
from benches.control import CONTROL, PING_S, Control, Event
from benches.ending import failed_header, failed_rank, lost_rank
from benches.schedule import Turn
from benches.spec import Case
from benches.topology import misplaced
from launchers.spec import Command
from launchers.supervise import POLL_S, Launch, Outcome, StopFlag

UNTRACED = "the ranks ended while the messages of a step were traced; what they had timed before stands"
PROGRESS = "progress.json"
"""In the folder of a launch: what its rank 0 last said of where it is."""
SIGNALLED_S = 5.0
"""A batch system that ends a job signals ranks, launchers and driver alike, in no order: what failed so shortly before
the driver was told to stop was ended by the same hand."""
SPARE_MEMORY = 0.1
"""Share of the host's memory that stays free; a launch that would go into it is left to a heat of its own."""


class Progress(Protocol):
    """What the driver tells whoever watches."""

    def started(self, turns: Sequence[Turn], number: int, total: int) -> None: ...
    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None: ...
    def ended(self, turn: Turn, header: record.Header) -> None: ...
    def told(self, text: str) -> None: ...


class Entry:
    """One launch of a heat, from its start to its record."""

    def __init__(self, turn: Turn, out: Path, command: Command, control: Control, place: Place | None = None) -> None:
        self.turn, self.out, self.command, self.control = turn, out, command, control
        self.place = place or Place()
        clear(out)
        (out / "command.sh").write_text(command.text() + "\n")
        self.started = datetime.datetime.now(datetime.timezone.utc)
        self.said: list[dict[str, Any]] = [{} for _ in range(turn.case.cluster.world_size)]
        self.blocks = 0
        """Blocks that it was told to run."""
        self.finishing = False
        self.idle_at = math.inf
        self.stopped_at = math.inf
        self.lost: int | None = None
        """The first rank whose agent is gone."""
        self._lost_at = 0.0
        self._waited_s = 0.0
        self.name = self.place.token
        control.invite(out, self.name, self.place.host)
        self.launch = Launch(
            command,
            log=out / "logs" / "launcher.log",
            limit_s=turn.case.limit_s,
            check=lambda: self._misplaced() or self._lost() or failed_rank(out),
            token=self.name,
        )
        self.launch.start()

    @property
    def ended(self) -> bool:
        """Whether nothing is left of it."""
        return self.launch.outcome is not None

    @property
    def idle(self) -> bool:
        """Whether all ranks have done what they were told and wait."""
        return not self.finishing and all(one.get("idle") == self.blocks for one in self.said)

    @property
    def stopped(self) -> bool:
        """Whether all ranks are stopped."""
        return all(one.get("stopped") for one in self.said)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its ranks on one machine when they became idle first; 0 before."""
        cluster = self.turn.case.cluster
        resident: int = sum(one.get("rss", 0) for one in self.said)
        return resident * cluster.ranks_on_a_machine // cluster.world_size

    def hear(self, event: Event) -> None:
        """Take in what one of its agents said."""
        if event.rank >= len(self.said):
            return
        if event.said is None:
            if self.lost is None:
                self.lost, self._lost_at = event.rank, time.time()
        else:
            self.said[event.rank] |= event.said
            if event.rank == 0 and "phase" in event.said:
                self._show(event.said)
        if self.idle and self.idle_at == math.inf:
            self.idle_at = time.monotonic()
            # Waiting does not count against its limit.
            self._waited_s = self.launch.uncounted_s
            self.launch.uncounted_s = math.inf

    def _show(self, said: dict[str, Any]) -> None:
        """Leave a file for whoever looks in from outside."""
        temporary = self.out / f".{PROGRESS}.tmp"
        temporary.write_text(json.dumps({**said, "at": time.time()}))
        temporary.replace(self.out / PROGRESS)

    def order(self, name: str, **details: Any) -> None:
        """Give all ranks an order; those that are stopped go on."""
        if name != "stop":
            self.launch.uncounted_s = self._waited_s + time.monotonic() - self.idle_at
            self.idle_at = self.stopped_at = math.inf
        else:
            self.stopped_at = time.monotonic()
        for rank, one in enumerate(self.said):
            one["stopped"] = False
            self.control.send(self.name, rank, {"order": name, **details})

    def run_block(self, place: int) -> None:
        """Order the next block; `place`: its place in its round."""
        parked_s = max(time.monotonic() - self.stopped_at, 0.0)
        self.blocks += 1
        self.order("block", block=self.blocks - 1, place=place, parked_s=parked_s)

    def finish(self, beside: Sequence[str]) -> None:
        """Order the record and the end; beside: keys of the contestants that were alive together with this one."""
        self.finishing = True
        self.order("finish", beside=list(beside), site=dict(self.place.facts))

    def _lost(self) -> str | None:
        phase = None if self.lost is None else self.said[self.lost].get("phase")
        return lost_rank(self.out, self.lost, phase, self._lost_at)

    def _misplaced(self) -> str | None:
        nodes = [one.get("node") for one in self.said]
        return misplaced(nodes, self.turn.case.cluster.ranks_per_node, self.place.names) if self.place.names else None

    def header(self, stop: StopFlag) -> record.Header:
        """The record of the launch, which has ended; written here where its ranks left none."""
        (self.out / CONTROL).unlink(missing_ok=True)
        if not (self.out / record.HEADER).exists() and not record.adopt_draft(self.out, UNTRACED):
            phase, ended = self.said[0].get("phase"), self._outcome(stop)
            cause = self._misplaced() or self._lost()
            failed = failed_header(self.turn, self.out, self.command, self.started, ended, phase, cause)
            record.write(self.out, failed, None)
        return record.read(self.out)

    def _outcome(self, stop: StopFlag) -> Outcome:
        outcome = self.launch.outcome
        assert outcome is not None
        if outcome.status == "failed" and self.launch.ended_at > stop.since - SIGNALLED_S:
            return replace(outcome, status="interrupted", reason=stop.reason())
        return outcome


class Heat:
    """Runs launches side by side to their ends. Use as a context manager: it leaves no process."""

    def __init__(self, control: Control, progress: Progress, stop: StopFlag) -> None:
        self.control, self.progress, self.stop = control, progress, stop
        self.entries: list[Entry] = []
        self._pinged = 0.0

    def __enter__(self) -> Heat:
        return self

    def __exit__(self, *_: object) -> None:
        for entry in self.entries:
            entry.launch.close()
            self.control.dismiss(entry.name)

    def start(self, turns: Sequence[Turn], make: Callable[[Turn], Entry], cores: int) -> list[Turn]:
        """Start the launches, as many at a time as keep the cores busy, and stop each once it is warmed up.

        Returns those for which there was no memory.
        """
        left = list(turns)
        while left and not self.stop.is_set():
            if self.entries and not self._has_room():
                break
            self.entries.append(make(left.pop(0)))
            self._until(self.entries[-1], lambda: self._starting(left, cores))
        for entry in self.entries:
            self._until_rests(entry)
        return left

    def _starting(self, left: Sequence[Turn], cores: int) -> bool:
        """Whether the next launch may start beside those that are not ready yet."""
        busy = [entry.turn for entry in self.entries if not (entry.idle or entry.ended)]
        cases = [turn.case for turn in [*busy, *left[:1]]]
        ranks = sum(case.cluster.ranks_on_a_machine for case in cases)
        return not busy or (ranks <= 2 * cores and not any(map(_tunes_itself, cases)))

    def _has_room(self) -> bool:
        """Whether one more launch, and those that are still growing, have memory if each is as large as the largest.

        Where ranks run on other machines that is not known here: who finds none there fails, and runs again alone.
        """
        if any(entry.turn.case.cluster.name not in ("local", "virtual") for entry in self.entries):
            return True
        memory = psutil.virtual_memory()
        largest = max(entry.memory_bytes for entry in self.entries)
        growing = sum(not (entry.memory_bytes or entry.ended) for entry in self.entries)
        return bool(memory.available - (1 + growing) * largest > SPARE_MEMORY * memory.total)

    def run(self, orders: Iterable[Sequence[int]]) -> None:
        """Let the entries take turns; each of `orders` holds the places of the entries in one round, in order."""
        for order in orders:
            alive = [self.entries[index] for index in order if not self.entries[index].ended]
            for place, entry in enumerate(alive):
                if self.stop.is_set():
                    return
                entry.run_block(place)
                self._until_rests(entry)

    def finish(self) -> list[record.Header]:
        """Let each launch write its record and end; the records, in the order of the entries."""
        keys = [entry.turn.contestant.key for entry in self.entries]
        for entry in sorted(self.entries, key=lambda entry: not _measures_at_the_end(entry.turn.case)):
            if not entry.ended and entry.idle and not self.stop.is_set():
                entry.finish([key for key in keys if key != entry.turn.contestant.key])
            if _measures_at_the_end(entry.turn.case):
                self._until(entry, lambda: False)
        for entry in self.entries:
            self._until(entry, lambda: False)
        return [entry.header(self.stop) for entry in self.entries]

    def _until_rests(self, entry: Entry) -> None:
        """Watch until the entry waits, and is stopped where another one is to run."""
        self._until(entry, lambda: entry.idle and (entry.stopped or not self._crowded()))

    def _crowded(self) -> bool:
        return sum(not entry.ended for entry in self.entries) > 1

    def _until(self, shown: Entry, done: Callable[[], bool]) -> None:
        """Watch all launches until `done`, or until the one that is shown has ended."""
        while not (done() or shown.ended):
            self._watch(shown)

    def _watch(self, shown: Entry) -> None:
        """Listen to agents, poll every launch, stop who has become idle, end all where a stop asks for that."""
        if time.monotonic() >= self._pinged + PING_S:
            self._pinged = time.monotonic()
            self.control.ping()
        launches = [entry.launch for entry in self.entries if not entry.ended]
        for event in self.control.wait(launches, POLL_S):
            for entry in self.entries:
                if entry.name == event.launch:
                    entry.hear(event)
        for entry in self.entries:
            if not entry.ended and entry.launch.poll() is None and self.stop.is_set():
                entry.launch.end(self.stop.reason(), at_once=self.stop.is_urgent())
        self._park()
        self.progress.ticked(shown.turn, shown.said[0], sum(entry.idle for entry in self.entries))

    def _park(self) -> None:
        """Stop every launch that waits beside another; one that is alone just waits."""
        if self._crowded():
            for entry in self.entries:
                if entry.idle and entry.stopped_at == math.inf and not entry.ended:
                    entry.order("stop")


def _tunes_itself(case: Case) -> bool:
    """Whether the warm-up times alternatives and keeps the best, so that nobody else may start beside it."""
    autotunes = case.horovod is not None and case.horovod.autotune
    return autotunes or (case.device == "cuda" and (case.cudnn_benchmark or case.compile))


def _measures_at_the_end(case: Case) -> bool:
    """Whether more is timed behind the blocks, so that nobody else may run."""
    return case.curve_max_mb is not None or case.trace_messages


def clear(out: Path) -> None:
    """Make the folder of a launch, without what an interrupted try left there."""
    for name in ("logs", "exits"):
        (out / name).mkdir(parents=True, exist_ok=True)
        for path in (out / name).iterdir():
            path.unlink()
    for name in (CONTROL, PROGRESS, record.DRAFT, record.SAMPLES, record.CURVE):
        (out / name).unlink(missing_ok=True)
