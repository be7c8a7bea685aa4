"""Figures of a sweep of settings, from `library.tuning`. Sizes in bytes, times in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style, words
from analysis.charts import LINES, heat
from analysis.style import MOST_ROWS, TITLE_CHARACTERS, WIDTH
from analysis.tuning import PREFIX

SIZES = {"ddp": f"{PREFIX}ddp.bucket_cap_mb", "horovod": f"{PREFIX}horovod.fusion_threshold_mb"}
DEFAULT_MB = {"ddp": 25.0, "horovod": 128.0}
"""Where a value that is null stands: the size of the library's own buckets and of its fusion buffer."""


def sized(tuned: pd.DataFrame) -> pd.DataFrame:
    """Rows whose bucket or fusion size was swept, with `bytes`, `default` (the library's own) and `rest` (what else the
    sub-grid sets)."""
    frames = list(_sized(tuned))
    found: pd.DataFrame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*tuned, "bytes"])
    return found


def _sized(tuned: pd.DataFrame) -> Iterator[pd.DataFrame]:
    swept = [column for column in tuned.columns if str(column).startswith(PREFIX)]
    for cell, own in tuned.groupby("cell", sort=False):
        engine = str(cell).partition("/")[0]
        column = SIZES.get(engine)
        if column not in tuned.columns or own[column].nunique() < 2:
            continue
        others = [name for name in swept if name != column and own[name].nunique() > 1]
        rest = [", ".join(f"{n.rpartition('.')[2]} {row[n]}" for n in others) for _, row in own.iterrows()]
        size = own[column].astype(float).fillna(DEFAULT_MB[engine]) * 2**20
        yield own.assign(bytes=size, default=own[column].isna(), rest=rest)


def sizes(tuned: pd.DataFrame, fabric: pd.DataFrame | None = None) -> Figure:
    """Step time against bucket size and fusion threshold on one axis of bytes; tuned: of `library.tuning`.

    fabric: columns cell, bytes, seconds, message (false: a point of the all-reduce curve, true: a message that was
    sent, at the time that the curve gives it); drawn below, over the same axis.
    """
    shown = sized(tuned)
    if not len(shown):
        return style.empty("No sweep of bucket or fusion sizes")
    below = fabric is not None and len(fabric) > 0
    figure = Figure(figsize=(WIDTH, 5.6 if below else 3.4), layout="constrained")
    axes = figure.subplots(1 + below, 1, squeeze=False, sharex=True, height_ratios=[3, 2][: 1 + below])[:, 0]
    smallest = float(shown.loc[shown["bytes"] > 0, "bytes"].min()) / 4
    _sizes_panel(axes[0], shown, smallest)
    if below and fabric is not None:
        _fabric_panel(axes[1], fabric)
    axes[-1].set_xscale("log", base=2)
    _size_ticks(axes[-1], shown, smallest)
    leading = shown[shown["best"]]
    best = leading.iloc[int(leading["step_time_s"].map(lambda one: one.value).argmin())]
    text = (
        f"{words.title(words.clean(str(best['name']), 40), str(best['cell']))} is fastest of {len(shown)} settings, "
        f"{words.duration(best['step_time_s'].value)} a step "
        f"({words.launches([one.n for one in shown['step_time_s']])})"
    )
    figure.suptitle(style.title(text, TITLE_CHARACTERS), x=0.01, ha="left", fontsize=10)
    scale = "largest bucket (DDP) or fused message (Horovod) against milliseconds a step; bars: launches; star: default"
    style.legend(figure, shown["cell"], scale + ("\nbelow: all-reduce alone; crosses: messages sent" if below else ""))
    return figure


def _sizes_panel(axis: Axes, shown: pd.DataFrame, smallest: float) -> None:
    for k, ((cell, rest), own) in enumerate(list(shown.groupby(["cell", "rest"], sort=False))[:MOST_ROWS]):
        colour, marker = style.of_cell(str(cell))
        ordered = own.sort_values("bytes")
        x = ordered["bytes"].clip(lower=smallest)
        middle, low, high = (np.array([getattr(one, f) * 1e3 for one in ordered["step_time_s"]])
                             for f in ("value", "low", "high"))  # fmt: skip
        line = LINES[k % len(LINES)] if rest else "-"
        axis.plot(x, middle, ls=line, color=colour, marker=marker, mfc="none", lw=1.3, ms=5)
        axis.vlines(x, low, high, color=colour, lw=0.9)
        star = ordered["default"].to_numpy()
        axis.plot(x[star], middle[star], "*", ms=11, color=colour)
        if rest:
            axis.annotate(style.safe(words.clean(str(rest), 30)), (x.iloc[-1], middle[-1]), xytext=(6, 0),
                          textcoords="offset points", fontsize=7, va="center")  # fmt: skip
    axis.tick_params(labelsize=8)
    axis.margins(x=0.12)
    axis.grid(axis="y", color="0.88", lw=0.6)
    style.quiet(axis)


def _fabric_panel(axis: Axes, fabric: pd.DataFrame) -> None:
    for cell, own in fabric.groupby("cell", sort=False):
        colour, _ = style.of_cell(str(cell))
        curve, messages = own[~own["message"]].sort_values("bytes"), own[own["message"]]
        axis.plot(curve["bytes"], curve["seconds"] * 1e3, "-", color=colour, lw=1.2)
        axis.plot(messages["bytes"], messages["seconds"] * 1e3, "x", color=colour, ms=6)
    axis.set_yscale("log")
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="0.88", lw=0.6)
    style.quiet(axis)


def _size_ticks(axis: Axes, shown: pd.DataFrame, smallest: float) -> None:
    values = sorted(shown["bytes"].unique())
    apart = [value for k, value in enumerate(values) if not k or value > 1.5 * values[k - 1]]
    ticks = [max(float(value), smallest) for value in apart]
    axis.set_xticks(ticks, [words.size(int(value)) if value else "none" for value in apart], fontsize=8)
    axis.set_xticks([], minor=True)


def joint(tuned: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(cell, setting, setting) of each cell in which two settings were swept together."""
    swept = [column for column in tuned.columns if str(column).startswith(PREFIX)]
    found = []
    for cell, own in tuned.groupby("cell", sort=False):
        many = [name for name in swept if own[name].nunique(dropna=False) > 1]
        if len(many) >= 2:
            found.append((str(cell), many[0], many[1]))
    return found


def heat_map(tuned: pd.DataFrame, cell: str, rows: str, columns: str) -> Figure:
    """Step time of one cell over two settings, as change against its best; tuned: of `library.tuning`."""
    own = tuned[tuned["cell"] == cell]
    values = own.assign(value=own["step_time_s"].map(lambda one: one.value))
    grid = values.pivot_table(index=rows, columns=columns, values="value", aggfunc="min", dropna=False)
    ratios = grid.to_numpy() / np.nanmin(grid.to_numpy())
    texts = {(i, j): words.change(ratios[i, j]) for i, j in np.argwhere(np.isfinite(ratios)).tolist()}
    figure = Figure(figsize=(WIDTH, 0.5 * len(grid) + 1.4), layout="constrained")
    axis = figure.subplots()
    heat(axis, ratios, list(map(str, grid.index)), list(map(str, grid.columns)), texts)
    names = [name.removeprefix(PREFIX) for name in (rows, columns)]
    axis.set_ylabel(style.safe(names[0]), fontsize=8)
    axis.set_xlabel(style.safe(names[1]), fontsize=8)
    best = values.loc[values["value"].idxmin()]
    n = words.launches([one.n for one in own["step_time_s"]])
    text = f"{cell}: fastest at {names[0]} {best[rows]}, {names[1]} {best[columns]}; the others against that ({n})"
    axis.set_title(style.title(text, 100), loc="left", fontsize=9)
    return figure
