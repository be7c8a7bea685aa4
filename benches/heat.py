"""A heat: launches that start up together, wait until all are ready, and are then timed one after the other.

Starting together only saves time: while one is timed, no other starts up, and those that wait sleep.
"""

from __future__ import annotations

import datetime
import math
import secrets
import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from benches import record
from benches.ending import failed_header, failed_rank, read_progress
from benches.schedule import Turn
from benches.worker import GO, READY, SUPERVISED
from launchers.spec import Command
from launchers.supervise import POLL_S, Launch, StopFlag

UNTRACED = "the ranks ended while the messages of a step were traced; what they had timed before stands"


class Progress(Protocol):
    """What the driver tells whoever watches."""

    def started(self, turn: Turn, number: int, total: int) -> None: ...
    def ticked(self, turn: Turn, said: dict[str, Any]) -> None: ...
    def ended(self, turn: Turn, header: record.Header) -> None: ...


class Entry:
    """One launch of a heat, from its start to its record."""

    def __init__(self, turn: Turn, out: Path, command: Command) -> None:
        self.turn, self.out, self.command = turn, out, command
        clear(out)
        (out / "command.sh").write_text(command.text() + "\n")
        self.started = datetime.datetime.now(datetime.timezone.utc)
        self.ready_at = math.inf
        self.launch = Launch(
            Command(command.argv, {**command.env, SUPERVISED: "1"}, command.cwd),
            log=out / "logs" / "launcher.log",
            limit_s=turn.case.limit_s,
            check=lambda: failed_rank(out),
            token=secrets.token_hex(8),
        )
        self.launch.start()

    def poll(self) -> bool:
        """Look at the launch; whether nothing is left of it."""
        if self.launch.poll() is not None:
            return True
        if self.ready_at == math.inf and read_progress(self.out).get("phase") == READY:
            self.ready_at = time.monotonic()
            # Waiting for its turn does not count against its limit.
            self.launch.uncounted_s = math.inf
        return False

    def waits(self) -> bool:
        """Whether it is ready, or will never be."""
        return self.ready_at < math.inf or self.launch.outcome is not None

    def go(self) -> None:
        """Let the ranks warm up and be timed."""
        if self.launch.outcome is None:
            self.launch.uncounted_s = time.monotonic() - self.ready_at
            (self.out / GO).touch()

    def header(self) -> record.Header:
        """The record of the launch, which has ended; written here where its ranks left none."""
        assert self.launch.outcome is not None
        if not (self.out / record.HEADER).exists() and not record.adopt_draft(self.out, UNTRACED):
            failed = failed_header(self.turn, self.out, self.command, self.started, self.launch.outcome)
            record.write(self.out, failed, None)
        return record.read(self.out)


def run_heat(entries: Sequence[Entry], progress: Progress, stop: StopFlag) -> list[record.Header]:
    """Run launches that have been started to their ends; their records, in the same order. It leaves no process."""
    try:
        while not all(entry.waits() for entry in entries):
            _watch(entries, entries[0], progress, stop)
        for entry in entries:
            entry.go()
            while entry.launch.outcome is None:
                _watch(entries, entry, progress, stop)
        return [entry.header() for entry in entries]
    finally:
        for entry in entries:
            entry.launch.close()


def _watch(entries: Sequence[Entry], shown: Entry, progress: Progress, stop: StopFlag) -> None:
    """Poll every launch, end them where a stop asks for that, and sleep a little, or until one has ended."""
    for entry in entries:
        if not entry.poll() and stop.is_set():
            entry.launch.end(stop.reason(), at_once=stop.is_urgent())
    progress.ticked(shown.turn, read_progress(shown.out))
    select.select([entry.launch for entry in entries if entry.launch.outcome is None], [], [], POLL_S)


def clear(out: Path) -> None:
    """Make the folder of a launch, without what an interrupted try left there."""
    for name in ("logs", "exits"):
        (out / name).mkdir(parents=True, exist_ok=True)
        for path in (out / name).iterdir():
            path.unlink()
    for name in ("progress.json", GO, record.DRAFT):
        (out / name).unlink(missing_ok=True)
