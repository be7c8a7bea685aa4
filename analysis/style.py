"""What all figures share: colours, markers, titles. Okabe and Ito's colours, told apart with any colour vision."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import words

COLOURS = {"local": "#595959", "ddp": "#0072B2", "horovod": "#D55E00"}
MARKERS = {None: "D", "gloo": "o", "mpi": "s", "nccl": "^"}
BAND = "#009E73"
OTHER = "#CC79A7"
WIDTH = 8.0
"""Inches: a page of print, a README."""
MOST_ROWS = 40
"""Contestants of one figure; the table holds the rest."""
TITLE_CHARACTERS = 112
"""What a line across the whole figure holds; a panel's title has its labels less."""


def legend(figure: Figure, cells: Iterable[str], scale: str) -> None:
    """What the markers of cells (`ddp/gloo`) and, above them, the scale mean."""
    handles = []
    for cell in sorted(set(cells)):
        colour, marker = of_cell(cell)
        handles.append(Line2D([], [], color=colour, marker=marker, mfc="none", lw=0, label=cell))
    made = figure.legend(handles=handles, title=scale, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    made.get_title().set(fontsize=8, multialignment="center")


def of_cell(cell: str) -> tuple[str, str]:
    """Colour of the engine, marker of the transport."""
    engine, _, transport = cell.partition("/")
    return COLOURS.get(engine, OTHER), MARKERS.get(transport or None, "v")


def empty(text: str) -> Figure:
    figure = Figure(figsize=(WIDTH, 1.0))
    figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure


def title(text: str, width: int) -> str:
    return safe(words.wrapped(text, width))


def quiet(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", color="0.88", lw=0.6)
    axis.set_axisbelow(True)


def left_out(count: int) -> str:
    return f"; {count} more stand in the table" if count else ""


def safe(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")
