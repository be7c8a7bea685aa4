"""What the person at the terminal sees while a study runs: one live line, and a line for each launch that ended.

Everything goes to standard error; standard output is for results.
"""

from __future__ import annotations

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
    TimeRemainingColumn,
)

from benches.record import Header
from benches.schedule import Turn

PHASES = {
    "setup": "starting",
    "parity": "parity gate",
    "ready": "ready",
    "warmup": "warming up",
    "timing": "timing",
    "curve": "timing the all-reduce",
    "trace": "tracing messages",
    "done": "closing",
}


class Watch:
    """Live progress of a study. Use as a context manager."""

    def __init__(self, console: Console, launches_per_case: int) -> None:
        self.console, self.launches_per_case = console, launches_per_case
        columns = (SpinnerColumn(), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(
            *columns, TimeRemainingColumn(compact=True), TextColumn("{task.description}"), console=console
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, turn: Turn, number: int, total: int) -> None:
        """A launch starts: number `number` of `total`, from 0."""
        self._progress.update(self._task, total=total, completed=number, description=self._name(turn))

    def ticked(self, turn: Turn, said: dict[str, Any]) -> None:
        """The launch is alive; `said` is what its rank 0 last said."""
        phase = PHASES.get(said.get("phase", "setup"), "")
        block = f" {said['block'] + 1}/{said['blocks']}" if said.get("phase") == "timing" else ""
        self._progress.update(self._task, description=f"{self._name(turn)} · {phase}{block}")

    def ended(self, turn: Turn, header: Header) -> None:
        """The launch ended and left this record."""
        self._progress.advance(self._task)
        if header.status == "ok":
            if not self.console.is_terminal:
                self.console.print(f"{self._name(turn)}: done in {header.duration_s:.0f} s", highlight=False)
            return
        self.console.print(f"[red]✗[/red] {self._name(turn)}: {header.status}: {escape(header.reason or '')}")
        for line in header.log_tail:
            self.console.print(f"    {line}", markup=False, highlight=False)

    def _name(self, turn: Turn) -> str:
        case = turn.case
        where = f"{case.model.name} × {case.cluster.world_size}"
        return escape(f"{turn.contestant.name} · {where} · launch {turn.launch + 1}/{self.launches_per_case}")
