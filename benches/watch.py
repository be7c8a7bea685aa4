"""What the person at the terminal sees while a study runs: one live line, and a line for each launch that ended.

Everything goes to standard error; standard output is for results.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from benches.record import Header
from benches.schedule import Turn
from benches.spec import Study

PHASES = {
    "setup": "starting",
    "parity": "parity gate",
    "warmup": "warming up",
    "timing": "timing",
    "curve": "timing the all-reduce",
    "trace": "tracing messages",
}


class TimeLeft:
    """Time that the launches of a stage still take, by the mean of those that have ended; `now`: monotonic seconds.

    Launches of a heat end all at once: a rate by the latest ends, as progress bars take it, would say nothing.
    """

    def __init__(self) -> None:
        self._done = self._total = 0
        self._begun = self._latest = 0.0

    def begin(self, done: int, total: int, now: float) -> None:
        """A heat starts; `done` of `total` launches of the stage have ended."""
        if not done:
            self._begun = self._latest = now
        self._done, self._total = done, total

    def end(self, now: float) -> None:
        """A launch ended."""
        self._done, self._latest = self._done + 1, now

    def text(self, now: float) -> str:
        """`0:01:40 left`, which counts down between ends; empty before the first."""
        if not self._done:
            return ""
        each = (self._latest - self._begun) / self._done
        left = max(each * (self._total - self._done) - (now - self._latest), 0)
        return f"{datetime.timedelta(seconds=round(left))} left"


class Watch:
    """Live progress of a study. Use as a context manager."""

    def __init__(self, console: Console, study: Study) -> None:
        self.console, self.study = console, study
        columns = (SpinnerColumn(), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        texts = (TextColumn("{task.fields[left]}"), TextColumn("{task.description}"))
        self._progress = Progress(*columns, *texts, console=console)
        self._task = self._progress.add_task("", total=None, left="")
        self._left = TimeLeft()

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, turns: Sequence[Turn], number: int, total: int) -> None:
        """Launches start that will be alive together; `number` of `total` have ended."""
        self._left.begin(number, total, time.monotonic())
        self._update(total=total, completed=number, description=self._name(turns[0]))
        if not self.console.is_terminal:
            names = ", ".join(f"{turn.contestant.name} x {turn.case.cluster.world_size}" for turn in turns)
            self._print(f"launch {turns[0].launch + 1}, {turns[0].case.model.name}: {names}")

    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None:
        """A launch is alive; `said`: what its rank 0 last said. `waiting`: launches that wait for their turn."""
        phase = PHASES.get(said.get("phase", "setup"), "")
        block = f" {said['block'] + 1}/{self.study.rounds}" if said.get("phase") == "timing" else ""
        beside = f" · {waiting} wait" if waiting else ""
        self._update(description=f"{self._name(turn)} · {phase}{block}{beside}")

    def ended(self, turn: Turn, header: Header) -> None:
        """The launch ended and left this record."""
        self._left.end(time.monotonic())
        self._update(advance=1)
        if header.status != "ok":
            self.console.print(f"[red]✗[/red] {self._name(turn)}: {header.status}: {escape(header.reason or '')}")
            for line in header.log_tail:
                self._print(f"    {line}")

    def told(self, text: str) -> None:
        """Something that whoever watches should know."""
        self._print(text)

    def _update(self, **changes: Any) -> None:
        self._progress.update(self._task, left=self._left.text(time.monotonic()), **changes)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def _name(self, turn: Turn) -> str:
        case = turn.case
        where = f"{case.model.name} × {case.cluster.world_size}"
        return escape(f"{turn.contestant.name} · {where} · launch {turn.launch + 1}")
