"""The study on a terminal: the answer first, then a table a model, failures and warnings. Readable without colour."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis import grids, headline, words
from analysis.grids import Grid
from analysis.rows import Summary

WIDE = 116
"""Columns of a terminal from which the whole table is shown."""
MOST_WARNINGS = 12
LOG_LINES = 8


def show(summary: Summary, console: Console) -> None:
    """Print the study. Text from records is printed as it is, without markup."""
    for line in headline.lines(summary):
        subject, _, finding = line.partition(": ")
        console.print(Text.assemble((f"{subject}: ", "bold"), finding))
    for group in summary.groups():
        console.print()
        console.print(_table(grids.contestants(summary, group), wide=console.width >= WIDE))
    for line in grids.legend(summary):
        console.print(Text(line, style="dim"))
    _show_curves(summary, console)
    _show_failures(summary, console)
    _show_warnings(summary.warnings, console)


def _table(grid: Grid, wide: bool) -> Table:
    table = Table(title=Text(grid.title, style="bold"), title_justify="left", box=None, padding=(0, 1, 0, 0))
    shown = [i for i, column in enumerate(grid.columns) if wide or not column.wide]
    for i in shown:
        column = grid.columns[i]
        # Only names may be folded: a number that is cut in two is misread.
        width = {"min_width": 12} if column.title == "contestant" else {"no_wrap": True}
        table.add_column(Text(column.title), justify=column.align, overflow="fold", vertical="top", **width)
    for number, row in enumerate(grid.rows):
        if number in grid.sections:
            table.add_row()
        table.add_row(*(Text(row[i]) for i in shown))
    return table


def _show_curves(summary: Summary, console: Console) -> None:
    grids_ = grids.curves(summary)
    for grid in grids_:
        console.print()
        console.print(_table(grid, wide=True))
    for line in grids.CURVE_LEGEND if grids_ else ():
        console.print(Text(line, style="dim"))


def _show_failures(summary: Summary, console: Console) -> None:
    for failure in summary.failures:
        where = ", ".join(words.clean(part) for part in failure.row.group if part)
        numbers = ", ".join(map(str, failure.launches))
        console.print()
        title = (
            f"{failure.status}: {where}, {words.ranks(failure.row.world_size)}, {failure.row.title}, launch {numbers}"
        )
        console.print(Text(title, style="bold red"))
        console.print(Padding(Text(words.clean(failure.reason) + grids.parity_error(failure)), (0, 0, 0, 2)))
        for line in failure.log_tail[-LOG_LINES:]:
            console.print(Padding(Text(words.clean(line), style="dim"), (0, 0, 0, 4)))


def _show_warnings(warnings: list[str], console: Console) -> None:
    if warnings:
        console.print()
    for warning in warnings[:MOST_WARNINGS]:
        console.print(Text.assemble(("warning: ", "yellow"), words.clean(warning)))
    if len(warnings) > MOST_WARNINGS:
        console.print(Text(f"{len(warnings) - MOST_WARNINGS} more warnings stand in the report and under --json"))
