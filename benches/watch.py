"""What the person at the terminal sees while a study runs: one live line, and a line for each launch that ended.

Everything goes to standard error; standard output is for results.
"""

from __future__ import annotations

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
    TimeRemainingColumn,
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


class Watch:
    """Live progress of a study. Use as a context manager."""

    def __init__(self, console: Console, study: Study) -> None:
        self.console, self.study = console, study
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

    def started(self, turns: Sequence[Turn], number: int, total: int) -> None:
        """Launches start that will be alive together; `number` of `total` have ended."""
        self._progress.update(self._task, total=total, completed=number, description=self._name(turns[0]))
        if not self.console.is_terminal:
            names = ", ".join(f"{turn.contestant.name} x {turn.case.cluster.world_size}" for turn in turns)
            self._print(f"launch {turns[0].launch + 1}, {turns[0].case.model.name}: {names}")

    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None:
        """A launch is alive; `said`: what its rank 0 last said. `waiting`: launches that wait for their turn."""
        phase = PHASES.get(said.get("phase", "setup"), "")
        block = f" {said['block'] + 1}/{self.study.rounds}" if said.get("phase") == "timing" else ""
        beside = f" · {waiting} wait" if waiting else ""
        self._progress.update(self._task, description=f"{self._name(turn)} · {phase}{block}{beside}")

    def ended(self, turn: Turn, header: Header) -> None:
        """The launch ended and left this record."""
        self._progress.advance(self._task)
        if header.status != "ok":
            self.console.print(f"[red]✗[/red] {self._name(turn)}: {header.status}: {escape(header.reason or '')}")
            for line in header.log_tail:
                self._print(f"    {line}")

    def told(self, text: str) -> None:
        """Something that whoever watches should know."""
        self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def _name(self, turn: Turn) -> str:
        case = turn.case
        where = f"{case.model.name} × {case.cluster.world_size}"
        return escape(f"{turn.contestant.name} · {where} · launch {turn.launch + 1}")
