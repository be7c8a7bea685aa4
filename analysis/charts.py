"""Figures from the results of `analysis.library`: each function returns a matplotlib Figure and writes no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import style, words
from analysis.breakdown import PARTS
from analysis.estimate import Estimate
from analysis.speedup import BASELINES, is_apart
from analysis.style import BAND, COLOURS, MOST_ROWS, OTHER, TITLE_CHARACTERS, WIDTH

TOLD = {
    "local": "the bare model in one process",
    "wrapped_at_1": "the same engine with one rank",
    "smallest": "the same engine at the smallest size",
}
PART_STYLES = {"compute_s": (COLOURS["local"], ""), "engine_s": (OTHER, "///"), "exposed_s": (BAND, "...")}
PART_NAMES = {"compute_s": "compute (bare model)", "engine_s": "the engine's own", "exposed_s": "exposed communication"}
LAGS = 0.8
"""Share of steps in which one rank is the slowest, from which it is named."""
LINES = ("-", "--", ":", "-.")


def efficiency(scaled: pd.DataFrame, baseline: str = "") -> Figure:
    """Efficiency over ranks with intervals as bands, one panel a model; scaled: of `library.scaling`.

    baseline: of BASELINES; by default the first that most contestants with several ranks have.
    """
    many = scaled[scaled["kind"] != "one size"]
    name = baseline or max(BASELINES, key=lambda one: int(many[f"efficiency_{one}"].map(_is).sum()))
    column = f"efficiency_{name}"
    shown = many[many[column].map(_is)]
    if not len(shown):
        return style.empty("No efficiency was measured over several numbers of ranks")
    panels = [own for _, own in shown.groupby(["model", "at", shown["marks"].map(is_apart)], sort=False)]
    figure = Figure(figsize=(WIDTH, 2.7 * len(panels) + 0.9), layout="constrained")
    for axis, own in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        _efficiency_panel(axis, own, column)
        axis.set_title(style.title(_efficiency_title(own, column), 100), loc="left", fontsize=9)
    scale = f"ranks against throughput a rank ÷ that of {TOLD[name]}; bands: intervals of 95 %; line: perfect"
    style.legend(figure, shown["cell"], scale)
    return figure


def _efficiency_panel(axis: Axes, own: pd.DataFrame, column: str) -> None:
    axis.axhline(1, color="0.3", lw=0.8)
    for (_, cell), curve in list(own.groupby(["name", "cell"], sort=False))[:MOST_ROWS]:
        ordered = curve.sort_values("world_size")
        colour, marker = style.of_cell(str(cell))
        values = [(one.value, max(one.low, 0.0), min(one.high, 1.5)) for one in ordered[column]]
        middle, low, high = np.array(values).T
        axis.fill_between(ordered["world_size"], low, high, color=colour, alpha=0.15, lw=0)
        axis.plot(ordered["world_size"], middle, marker=marker, color=colour, mfc="none", ms=6, lw=1.5)
    sizes = sorted(own["world_size"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, list(map(str, sizes)), fontsize=8)
    axis.set_xticks([], minor=True)
    top = max(1.05, max(one.value for one in own[column]) * 1.03)
    axis.set_ylim(0, top)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f} %")
    axis.tick_params(axis="y", labelsize=8)
    axis.grid(axis="y", color="0.88", lw=0.6)
    style.quiet(axis)


def _efficiency_title(own: pd.DataFrame, column: str) -> str:
    size = own["world_size"].max()
    last = own[own["world_size"] == size]
    order = sorted(zip(last["cell"], last["marks"], last[column], strict=True), key=lambda one: -one[2].value)
    told = [f"{cell}{_marks(marks)} {one.value * 100:.0f} %" for cell, marks, one in order[:4]]
    n = words.launches([one.n for one in last[column]])
    return f"{at_point(own.iloc[0])}: at {words.ranks(int(size))} {', '.join(told)} ({n})"


def breakdown_bars(parts: pd.DataFrame) -> Figure:
    """Where a step's time goes, one bar a contestant; parts: of `library.breakdown`."""
    shown = parts.head(MOST_ROWS)
    if not len(shown):
        return style.empty("No baseline tells what a step's time is made of")
    figure = Figure(figsize=(WIDTH, 0.32 * len(shown) + 1.5), layout="constrained")
    axis = figure.subplots()
    for place, (_, row) in enumerate(shown.iterrows()):
        _bar(axis, row, place)
    axis.set_yticks(range(len(shown)), [_named(row) for _, row in shown.iterrows()], fontsize=8)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=8)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f} %")
    most = shown.loc[shown["exposed_share"].map(lambda one: one.value).idxmax()]
    share = most["exposed_share"]
    text = f"{_named(most)} spends most on exposed communication: {share.value * 100:.0f} % of its step"
    lefts = style.left_out(len(parts) - len(shown))
    figure.suptitle(
        style.title(f"{text} ({words.launches([share.n])}){lefts}", TITLE_CHARACTERS), x=0.01, ha="left", fontsize=10
    )
    handles = [Patch(facecolor=c, hatch=h, edgecolor="white", label=PART_NAMES[p]) for p, (c, h) in PART_STYLES.items()]
    made = figure.legend(handles=handles, title="share of the step", loc="outside lower center", ncols=3, frameon=False,
                         fontsize=8)  # fmt: skip
    made.get_title().set(fontsize=8)
    style.quiet(axis)
    return figure


def _bar(axis: Axes, row: pd.Series, place: int) -> None:
    start, step = 0.0, row["step_s"].value
    for part in PARTS:
        if not _is(row[part]):
            continue
        width = row[part].value / step
        colour, hatch = PART_STYLES[part]
        axis.barh(place, max(width, 0.0), left=start, height=0.6, color=colour, hatch=hatch, edgecolor="white", lw=0)
        start += max(width, 0.0)


def traces(steps: pd.DataFrame) -> Figure:
    """Seconds of each step on its slowest rank, in the order they ran, one panel a contestant; steps: of `steps.read`.

    Drift bends the line, modes make two of them, single disturbances stand out; the title names a rank that lags.
    """
    panels = list(steps.groupby(["title", "cell"], sort=False))
    if not panels:
        return style.empty("No step was recorded")
    figure = Figure(figsize=(WIDTH, 1.25 * len(panels) + 0.6), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axis, ((title, cell), own) in zip(axes, panels, strict=True):
        colour, _ = style.of_cell(str(cell))
        axis.plot(own["place"], own["slowest_s"] * 1e3, ".", ms=2.5, color=colour)
        axis.plot(own["place"], own["median_s"] * 1e3, "-", lw=0.7, color="0.3")
        for place in own.loc[own["launch"].diff() > 0, "place"]:
            axis.axvline(place, color="0.88", lw=0.8)
        axis.set_ylim(0, float(own["slowest_s"].quantile(0.995)) * 1e3 * 1.25)
        axis.tick_params(labelsize=8)
        axis.set_title(style.title(f"{title}: {_trace_finding(own)}", 108), loc="left", fontsize=9)
        style.quiet(axis)
    axes[-1].set_xlabel(
        "steps in the order they ran, launch after launch; milliseconds; points: slowest rank, line: median rank",
        fontsize=8,
    )
    return figure


def _trace_finding(own: pd.DataFrame) -> str:
    slow = own["slowest_s"] > 2 * own["slowest_s"].median()
    counts = own["rank"].value_counts(normalize=True)
    lags = len(counts) > 1 and counts.iloc[0] > LAGS
    told = f"{slow.mean() * 100:.1f} % of steps take" if slow.any() else "no step takes"
    told += " more than twice the median"
    lag = f"; rank {counts.index[0]} is the slowest in {counts.iloc[0] * 100:.0f} % of steps" if lags else ""
    return f"{told}{lag} (n = {len(own)} steps, {words.launches([own['launch'].nunique()]).removesuffix(' each')})"


def matrix(scaled: pd.DataFrame) -> Figure:
    """The smallest median of each engine and transport at the largest world size, and its ratio to the smallest of all;
    one panel a model and point of other axes. Not a verdict: medians are not paired. scaled: of `library.scaling`."""
    own = scaled[(scaled["cell"] != "local") & scaled["step_time_s"].map(_is)]
    apart = own["marks"].map(is_apart)
    own = own[own["world_size"] == own.groupby(["model", "at", apart])["world_size"].transform("max")]
    panels = [_fastest(group) for _, group in own.groupby(["model", "at", apart], sort=False)][:6]
    if not panels:
        return style.empty("No step time was measured")
    figure = Figure(figsize=(WIDTH, 1.45 * len(panels) + 0.3), layout="constrained")
    for axis, best in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        _matrix_panel(axis, best)
        first = best.iloc[0]
        text = f"{at_point(first)}, {words.ranks(int(first['world_size']))}: {first['cell']}"
        text += f"{_marks(first['marks'])} has the smallest median, {words.duration(first['step_time_s'].value)} a step"
        n = words.launches([one.n for one in best["step_time_s"]])
        axis.set_title(style.title(f"{text} ({n})", 96), loc="left", fontsize=9)
    return figure


def _fastest(group: pd.DataFrame) -> pd.DataFrame:
    """The fastest of each cell, the fastest of all first."""
    order = group.assign(value=group["step_time_s"].map(lambda one: one.value)).sort_values("value")
    found: pd.DataFrame = order.drop_duplicates("cell")
    return found


def _matrix_panel(axis: Axes, best: pd.DataFrame) -> None:
    engines = sorted({cell.partition("/")[0] for cell in best["cell"]})
    transports = sorted({cell.partition("/")[2] for cell in best["cell"]})
    grid = np.full((len(engines), len(transports)), np.nan)
    texts = {}
    for _, row in best.iterrows():
        place = engines.index(row["cell"].partition("/")[0]), transports.index(row["cell"].partition("/")[2])
        grid[place] = row["value"] / best["value"].iloc[0]
        texts[place] = f"{words.duration(row['value'])}\n{words.change(grid[place])}{_marks(row['marks'])}"
    heat(axis, grid, engines, transports, texts)


def heat(
    axis: Axes, grid: np.ndarray, rows: Sequence[str], columns: Sequence[str], texts: dict[tuple[int, int], str]
) -> None:
    """Cells that darken with the ratio to the best (1), with their texts; grid: (rows, columns), NaN: not measured."""
    most = max(float(np.nanmax(grid)), 1.1)
    # Not imshow: in an SVG that is a bitmap, which the page does not load.
    axis.pcolormesh(np.log(grid), cmap="cividis_r", vmin=0, vmax=np.log(most) * 1.35, edgecolors="white", lw=1)
    axis.invert_yaxis()
    for (i, j), text in texts.items():
        dark = np.log(grid[i, j]) > np.log(most) * 0.6
        axis.text(
            j + 0.5,
            i + 0.5,
            style.safe(text),
            ha="center",
            va="center",
            fontsize=8,
            color="#ffffff" if dark else "#111111",
        )
    axis.set_xticks(np.arange(len(columns)) + 0.5, [style.safe(one) for one in columns], fontsize=8)
    axis.set_yticks(np.arange(len(rows)) + 0.5, [style.safe(one) for one in rows], fontsize=8)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)


def at_point(row: pd.Series) -> str:
    """The model of a row of `library`, and the axes that no column shows: `resnet18, cluster.link_gbps=1`."""
    return ", ".join(filter(None, (words.clean(str(row["model"]), 40), words.clean(str(row["at"]), 60))))


def _named(row: pd.Series) -> str:
    ranks = words.ranks(int(row["world_size"]))
    title = words.title(words.clean(str(row["name"]), 20), str(row["cell"]))
    return style.safe(f"{words.clean(at_point(row), 40)}, {ranks}: {title}{_marks(row['marks'])}")


def _marks(marks: str) -> str:
    return "".join(f" [{mark}]" for mark in str(marks).split() if mark != "provisional")


def _is(cell: object) -> bool:
    return isinstance(cell, Estimate)
