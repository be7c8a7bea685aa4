"""Figures of a study: each function returns a matplotlib Figure and writes no file. Milliseconds and ratios.

Colours are Okabe and Ito's (told apart with any colour vision); the shape of a marker names the transport.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from analysis import headline, stats, style, words
from analysis.compare import Comparison
from analysis.launch import MAIN
from analysis.rows import Row, Summary
from analysis.style import BAND, COLOURS, MARKERS, MOST_ROWS, TITLE_CHARACTERS, WIDTH

LABEL_CHARACTERS = 48
"""Of a line beside a row; a longer one takes two."""


def step_times(summary: Summary) -> Figure:
    """Step time of each contestant: every launch a point, the median a bar. One panel a model and world size."""
    panels = [rows for group in summary.groups() for rows in headline.by_world_size(group)]
    shown, left = _first([ranked for rows in panels if (ranked := [row for row in rows if row.ranked])])
    if not shown:
        return style.empty("No step time was measured")
    width = TITLE_CHARACTERS - max(len(_label(row)) for rows in shown for row in rows)
    titles = [style.title(f"{headline.subject(rows)}: {headline.finding(summary, rows)}", width) for rows in shown]
    heights = [0.3 * (len(rows) + 0.4) for rows in shown]
    around = sum(0.42 + 0.17 * (title.count("\n") + 1) for title in titles) + 0.6
    figure = Figure(figsize=(WIDTH, sum(heights) + around), layout="constrained")
    axes = figure.subplots(len(shown), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, rows, title in zip(axes, shown, titles, strict=True):
        _step_time_panel(axis, summary, rows)
        axis.set_title(title, loc="left", fontsize=9)
    scale = f"milliseconds a step; bar: median, points: launches; the scales do not start at 0{style.left_out(left)}"
    style.legend(figure, [row.case.cell for rows in shown for row in rows], scale)
    return figure


def ratios(summary: Summary) -> Figure:
    """Step time against the reference with its interval, by model and world size; the band is the margin."""
    shown, left = summary.comparisons[:MOST_ROWS], max(len(summary.comparisons) - MOST_ROWS, 0)
    if not shown:
        return style.empty("Nothing was compared")
    # The engine's own padding is less than what it misjudges long labels by.
    figure = Figure(figsize=(WIDTH, 0.3 * len(shown) + 1.5), layout=ConstrainedLayoutEngine(w_pad=0.15))
    axis = figure.subplots()
    margin = summary.records.study.margin
    axis.axvspan(1 / (1 + margin), 1 + margin, color=BAND, alpha=0.18, lw=0)
    axis.axvline(1, color="0.3", lw=0.8)
    floor = _floor(axis, summary)
    limits = _ratio_limits(shown, margin)
    for place, comparison in enumerate(shown):
        _ratio_row(axis, summary.rows[comparison.a], comparison, place, limits)
    axis.set_xscale("log")
    axis.set_xlim(limits)
    _ratio_ticks(axis, limits)
    axis.set_yticks(range(len(shown)), [_pair(summary, comparison) for comparison in shown], fontsize=8)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    figure.suptitle(style.title(_ratio_title(summary, shown), TITLE_CHARACTERS), x=0.01, ha="left", fontsize=10)
    style.quiet(axis)
    scale = (
        f"step time ÷ step time of the reference: left is faster, right slower{style.left_out(left)}\n"
        f"intervals hold together with {stats.LEVEL * 100:g} %; green: the margin, {margin * 100:g} %{floor}"
    )
    style.legend(figure, [summary.rows[comparison.a].case.cell for comparison in shown], scale)
    return figure


def curves(summary: Summary) -> Figure:
    """busbw of the all-reduce itself against the size of its message, one line a contestant, one panel a world size."""
    panels = headline.curve_panels(summary)
    if not panels:
        return style.empty("No all-reduce was timed")
    figure = Figure(figsize=(WIDTH, 3.0 * len(panels) + 0.9), layout="constrained")
    for axis, rows in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        _curve_panel(axis, rows[:MOST_ROWS])
        axis.set_title(style.title(f"{headline.subject(rows)}: {_fastest_curve(rows)}", 96), loc="left", fontsize=9)
    scale = "size of the message against busbw in GB/s (10^9 bytes a second), median of launches; both logarithmic"
    style.legend(figure, [row.case.cell for rows in panels for row in rows], scale)
    return figure


def _curve_panel(axis: Axes, rows: Sequence[Row]) -> None:
    for row, line in zip(rows, _styles(rows), strict=True):
        sizes, rates = [point.bytes for point in row.curve], [point.busbw.value for point in row.curve]
        colour, marker = COLOURS[row.case.engine], MARKERS[row.case.transport]
        axis.plot(sizes, rates, marker=marker, ls=line, color=colour, mfc="none", ms=5, lw=1.3, label=_label(row))
    if len({row.case.cell for row in rows}) < len(rows):  # the figure's legend knows cells only
        axis.legend(fontsize=8, frameon=False, loc="lower right")
    sizes = sorted({point.bytes for row in rows for point in row.curve})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    shown = sizes[:: max(len(sizes) // 9, 1)]
    axis.set_xticks(shown, [words.size(size) for size in shown], fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.grid(axis="y", color="0.88", lw=0.6)
    style.quiet(axis)


def _styles(rows: Sequence[Row]) -> list[str]:
    """Lines that tell contestants of one cell apart."""
    kinds, seen = ("-", "--", ":", "-."), Counter[str]()
    styles = []
    for row in rows:
        styles.append(kinds[seen[row.case.cell] % len(kinds)])
        seen[row.case.cell] += 1
    return styles


def _fastest_curve(rows: Sequence[Row]) -> str:
    """What the panel shows, at the largest size that all have."""
    common = set.intersection(*({point.bytes for point in row.curve} for row in rows))
    if not common:
        return "sizes differ"
    size = max(common)
    rates = {row.title: point.busbw.value for row in rows for point in row.curve if point.bytes == size}
    best = max(rates, key=lambda title: rates[title])
    return f"at {words.size(size)} {words.clean(best, 40)} is fastest with {words.significant(rates[best])} GB/s"


def _first(panels: Sequence[Sequence[Row]]) -> tuple[list[list[Row]], int]:
    """As many rows as a figure holds, and how many are left out."""
    shown: list[list[Row]] = []
    room = MOST_ROWS
    for rows in panels:
        if room > 0:
            shown.append(list(rows[:room]))
            room -= len(shown[-1])
    return shown, sum(map(len, panels)) - sum(map(len, shown))


def _step_time_panel(axis: Axes, summary: Summary, rows: Sequence[Row]) -> None:
    launches = summary.records.launches
    for place, row in enumerate(rows):
        assert row.step_time_s is not None
        own = launches[(launches["contestant"] == row.index) & launches["usable"] & (launches["stage"] == MAIN)]
        colour, marker = COLOURS[row.case.engine], MARKERS[row.case.transport]
        axis.plot(own["step_time_s"] * 1e3, np.full(len(own), place), marker, ms=6, mfc="none", mec=colour, mew=1.3)
        axis.plot([row.step_time_s.value * 1e3] * 2, [place - 0.3, place + 0.3], color=colour, lw=2.2)
    axis.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.margins(x=0.08)
    axis.ticklabel_format(axis="x", useOffset=False)
    axis.tick_params(axis="x", labelsize=8)
    style.quiet(axis)


def _ratio_row(axis: Axes, row: Row, comparison: Comparison, place: int, limits: tuple[float, float]) -> None:
    colour, ratio = COLOURS[row.case.engine], comparison.ratio
    low, high = max(ratio.low, limits[0]), min(ratio.high, limits[1])
    axis.plot([low, high], [place, place], color=colour, lw=1.6)
    axis.plot(ratio.value, place, MARKERS[row.case.transport], color=colour, ms=6)
    for bound, end, arrow in ((ratio.low, low, "<"), (ratio.high, high, ">")):
        if bound != end:
            axis.plot(end, place, arrow, color=colour, ms=5, clip_on=False)


def _floor(axis: Axes, summary: Summary) -> str:
    """Dotted lines at the widest A/A control: what two copies of one contestant may differ by. What the legend says."""
    floors = [control.floor for control in summary.controls if np.isfinite(control.floor)]
    if not floors:
        return ""
    for bound in (1 / (1 + max(floors)), 1 + max(floors)):
        axis.axvline(bound, color="0.3", lw=0.9, ls=":")
    return f"; dotted: the A/A control, {words.half_width(max(floors))}"


def _ratio_limits(shown: Sequence[Comparison], margin: float) -> tuple[float, float]:
    """All values and the margin, and of the intervals what lies within a factor of two of the values."""
    values = [comparison.ratio.value for comparison in shown]
    low = min(min(max(c.ratio.low, c.ratio.value / 2) for c in shown), 1 / (1 + 2 * margin), *values)
    high = max(max(min(c.ratio.high, c.ratio.value * 2) for c in shown), 1 + 2 * margin, *values)
    return low / 1.02, high * 1.02


def _ratio_ticks(axis: Axes, limits: tuple[float, float]) -> None:
    steps = [0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100]
    inside = [step for step in steps if limits[0] <= step <= limits[1]]
    span = np.log(limits[1] / limits[0])
    kept = [step for step in inside if step == 1 or abs(np.log(step)) > span / 14]
    axis.set_xticks(kept, [f"{step:g}" for step in kept], fontsize=8)
    axis.set_xticks([], minor=True)


def _ratio_title(summary: Summary, shown: Sequence[Comparison]) -> str:
    counts = [sum(comparison.verdict == word for comparison in shown) for word in ("slower", "faster", "equivalent")]
    named = [f"{count} {word}" for count, word in zip(counts, ("slower", "faster", "equivalent"), strict=True) if count]
    named += [f"{len(shown) - sum(counts)} inconclusive"] if len(shown) > sum(counts) else []
    doubt = ", provisional" if any(comparison.provisional for comparison in shown) else ""
    launches = words.launches([comparison.ratio.n for comparison in shown])
    return f"Against the reference: {', '.join(named)} ({launches}{doubt})"


def _pair(summary: Summary, comparison: Comparison) -> str:
    a, b = summary.at(comparison.a), summary.at(comparison.b)
    text = f"{words.clean(headline.subject([a]), 28)}: {_marked(a)} ÷ {words.clean(b.title, 16)}"
    # In two lines where it would leave no room for the intervals.
    return style.title(text, LABEL_CHARACTERS)


def _label(row: Row) -> str:
    return style.safe(_marked(row))


def _marked(row: Row) -> str:
    shown = "".join(f" [{mark}]" for mark in row.marks if mark != "provisional")
    return words.clean(row.title, 24) + shown
