"""Sections of a report that rest on the library: why, scaling, sweeps, and what single steps and transports show."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import charts, library, steps, sweeps, words
from analysis.alphabeta import fit
from analysis.document import Bullets, Part, Picture
from analysis.estimate import Estimate
from analysis.grids import Column, Grid
from analysis.rows import Summary
from analysis.speedup import BASELINES
from analysis.tuning import PREFIX

NOTHING = "–"
SCALING_LEGEND = (
    "speed-up, efficiency: throughput, and throughput a rank, ÷ that of the baseline; paired by launch, 95 % each "
    "over the study's looks. "
    "local: the bare model in one process; at 1: the same engine with one rank; smallest: at the fewest ranks, where "
    "that is not one",
)
LAW_LEGEND = (
    "Amdahl: throughput = rate · n ÷ (1 + σ(n−1)); USL: … + κn(n−1) below the line. Fitted to medians; intervals of "
    "95 %. error: root mean square of the relative errors; R²: of efficiency",
)
BREAKDOWN_LEGEND = (
    "compute: the bare model in one process; engine: the same engine with one rank, less that; exposed: the step less "
    "the engine with one rank, which is communication that backward does not hide, waiting for the slowest rank, and "
    "what ranks of one host take from each other. Means of launches, 95 %",
)
SWEEP_LEGEND = (
    "against the best: step time ÷ that of the fastest of the same engine and transport at this point, paired by "
    "launch, in different heats through the reference; intervals hold together with 95 % over all pairs among which "
    "the fastest was found, and over the study's looks",
)
FABRIC_LEGEND = ("t = α + β · bytes, in pieces where the data show that the protocol changes; 95 % each",)


def singles(summary: Summary, scaled: pd.DataFrame) -> list[Part]:
    """Pictures of transports against engines and of single steps."""
    parts: list[Part] = []
    if scaled.loc[scaled["cell"] != "local", "cell"].nunique() > 2:
        told = "The smallest median of each engine and transport, at the most ranks; the tables pair launches."
        parts.append(Picture("transports", charts.matrix(scaled), told, library.values(scaled)))
    if len(traced := steps.read(summary)):
        told = "Milliseconds of single steps in the order they ran, the slowest rank as points, the median as a line."
        parts.append(Picture("traces", charts.traces(traced), told, traced))
    return parts


def why(blocks: pd.DataFrame) -> list[Part]:
    """What a step's time is made of."""
    found = library.breakdown(blocks)
    if not len(found):
        return []
    titles = ["model", "ranks", "contestant", "step, ms", "compute, ms", "engine, ms", "exposed, ms", "exposed"]
    columns = [Column(title, "left" if title in ("model", "contestant") else "right") for title in titles]
    cells = [
        [
            charts.at_point(row),
            str(row["world_size"]),
            _who(row),
            *(_with(row[name], 1e3) for name in ("step_s", "compute_s", "engine_s", "exposed_s")),
            _percent(row["exposed_share"]),
        ]
        for _, row in found.iterrows()
    ]
    told = "Share of a step that the bare model takes, the engine itself, and exposed communication."
    picture = Picture("breakdown", charts.breakdown_bars(found), told, library.values(found))
    return [Grid("Where the time of a step goes", columns, cells), Bullets(BREAKDOWN_LEGEND, quiet=True), picture]


def fabric(curves: pd.DataFrame) -> list[Part]:
    """α and β of each contestant's all-reduce."""
    found = library.allreduce_fit(curves)
    if not len(found):
        return []
    titles = ["model", "ranks", "contestant", "from", "to", "α, µs", "β, ns/KiB", "busbw limit, GB/s", "error"]
    columns = [Column(title, "left" if title in ("model", "contestant") else "right") for title in titles]
    cells = [
        [
            charts.at_point(row),
            f"{row['world_size']}" + (f" on {row['nodes']} nodes" if row["nodes"] > 1 else ""),
            _who(row),
            *([words.size(int(row[name])) for name in ("from_bytes", "to_bytes")] if not row["refused"] else ["", ""]),
            _with(row["alpha_s"], 1e6) if not row["refused"] else row["refused"],
            _with(row["beta_s_per_byte"], 1e9 * 1024),
            _with(row["busbw_limit"], 1),
            _error(row["error"]),
        ]
        for _, row in found.iterrows()
    ]
    return [Grid("The all-reduce as α + β · bytes", columns, cells), Bullets(FABRIC_LEGEND, quiet=True)]


def scaling(scaled: pd.DataFrame) -> list[Part]:
    """Speed-up and efficiency of contestants that ran at several sizes, and the laws fitted to them."""
    many = scaled[scaled["kind"] != "one size"]
    if not len(many):
        return []
    heads = {"local": "local", "wrapped_at_1": "at 1", "smallest": "smallest"}
    shown = [name for name in BASELINES if many[f"speed_up_{name}"].map(_is).any()]
    if many["world_size"].min() == 1 and "wrapped_at_1" in shown:
        shown.remove("smallest")  # the same, then
    columns = [Column("model"), Column("contestant"), Column("scaling")]
    columns += [Column("ranks", "right"), Column("samples/s", "right")]
    columns += [Column(f"{kind}\n{heads[name]}", "right") for name in shown for kind in ("speed-up", "efficiency")]
    cells = [
        [
            charts.at_point(row), _who(row), row["kind"], str(row["world_size"]),
            words.significant(row["throughput"].value),
            *(show(row[f"{kind}_{name}"])
              for name in shown for kind, show in (("speed_up", _plain), ("efficiency", _percent))),
        ]
        for _, row in many.iterrows()
    ]  # fmt: skip
    told = "Efficiency against the number of ranks, one line a contestant, with its interval as a band."
    picture = Picture("efficiency", charts.efficiency(scaled), told, library.values(many))
    table = Grid("Speed-up and efficiency", columns, cells)
    return [table, Bullets(SCALING_LEGEND, quiet=True), picture, *_laws(many)]


def _laws(many: pd.DataFrame) -> list[Part]:
    found = library.laws(many)
    titles = ["model", "contestant", "scaling", "sizes", "law", "σ", "κ", "error", "R²", "most ranks of use"]
    cells = []
    for _, row in found.iterrows():
        fitted = [_percent(row["sigma"]), _plain(row["kappa"], 2), _error(row["error"]), _number(row["r2"])]
        fitted.append(words.significant(row["peak"], 2) if row["peak"] == row["peak"] and row["peak"] else NOTHING)
        refused = [f"refused: {row['refused']}", *[NOTHING] * 4]
        cells.append([words.clean(row["model"], 40), _of_family(row), row["kind"], ", ".join(map(str, row["sizes"])),
                      {"amdahl": "Amdahl", "usl": "USL"}[row["law"]],
                      *(refused if row["refused"] else fitted)])  # fmt: skip
    grid = Grid("Laws of scaling", [Column(title) for title in titles], cells)
    return [grid, Bullets([*LAW_LEGEND, *_left_out(found)], quiet=True)]


def _left_out(found: pd.DataFrame) -> list[str]:
    """Points that the laws do not rest on; found: of `library.laws`."""
    # Both laws of a family rest on the same points.
    each = [
        f"{words.clean(row['model'], 40)}, {_of_family(row)} at {', '.join(map(str, row['left_out']))} ranks"
        for _, row in found[found["law"] == "amdahl"].iterrows()
        if row["left_out"]
    ]
    return [f"left out of the fits, being host-bound: {'; '.join(each)}"] if each else []


def sweep(summary: Summary, tuned: pd.DataFrame, curves: pd.DataFrame) -> list[Part]:
    """What the settings that were swept do."""
    if not len(tuned):
        return []
    swept = [column for column in tuned.columns if str(column).startswith(PREFIX)]
    if not swept or not tuned[swept].notna().any().any():
        return []
    titles = ["model", "ranks", "contestant", "step time, ms", "against the best", "interval", "standing"]
    columns = [Column(title, "right" if title == "ranks" else "left") for title in titles]
    cells = [
        [
            charts.at_point(row), str(row["world_size"]), _who(row),
            words.spread(row["step_time_s"].scaled(1e3, "ms")),
            words.change(row["against_best"].value) if _is(row["against_best"]) else NOTHING,
            words.interval(row["against_best"]) if _is(row["against_best"]) else NOTHING,
            _standing(row),
        ]
        for _, row in tuned.iterrows()
    ]  # fmt: skip
    table = Grid("Settings, each against the fastest of its engine and transport", columns, cells)
    return [table, Bullets(SWEEP_LEGEND, quiet=True), *_sweep_pictures(summary, tuned, curves)]


def _standing(row: pd.Series) -> str:
    if row["best"]:
        return "fastest"
    if not _is(row["against_best"]):
        return "not compared"
    return "not told from the fastest" if row["tied"] else "slower"


def _sweep_pictures(summary: Summary, tuned: pd.DataFrame, curves: pd.DataFrame) -> list[Part]:
    """One figure of sizes, and one of each pair of settings, for every point at which settings were swept."""
    parts: list[Part] = []
    for _, own in tuned.groupby(["point", "world_size"], sort=False):
        parts += _pictures_at(summary, own, curves, len(parts))
    return parts


def _pictures_at(summary: Summary, tuned: pd.DataFrame, curves: pd.DataFrame, before: int) -> Iterator[Picture]:
    """before: pictures that there are, whose names must not be taken again."""
    first = tuned.iloc[0]
    where = f"{charts.at_point(first)}, {words.ranks(int(first['world_size']))}"
    if len(sweeps.sized(tuned)):
        told = f"Step time against bucket size and fusion threshold, on one axis of bytes: {where}."
        own = curves[curves["point"].eq(first["point"]) & curves["world_size"].eq(first["world_size"])]
        figure = sweeps.sizes(tuned, messages(summary, own))
        yield Picture(f"sizes_{before}" if before else "sizes", figure, told, library.values(sweeps.sized(tuned)))
    for number, (cell, rows, columns) in enumerate(sweeps.joint(tuned), before):
        told = f"Step time of {cell} over two settings that were swept together, against its best: {where}."
        figure = sweeps.heat_map(tuned, cell, rows, columns)
        yield Picture(f"joint_{number}", figure, told, library.values(tuned))


def messages(summary: Summary, curves: pd.DataFrame) -> pd.DataFrame:
    """All-reduce curves of each cell, and the messages of its contestants at the time that the α–β model gives them."""
    frames = []
    for cell, own in curves.groupby("cell", sort=False):
        points = own.groupby("bytes")["seconds"].median()
        pieces = fit(points.index.to_numpy(), points.to_numpy())
        curve = {"bytes": points.index, "seconds": points.to_numpy(), "message": False, "cell": cell}
        frames.append(pd.DataFrame(curve))
        places = set(own["contestant"])
        sent = sorted({size for row in summary.rows if row.index in places for size in _sent(row.effective)})
        told = [next((p for p in pieces if size <= p.to_bytes), pieces[-1]).time_s(size) for size in sent if pieces]
        frames.append(pd.DataFrame({"bytes": sent[: len(told)], "seconds": told, "message": True, "cell": cell}))
    columns = ["cell", "bytes", "seconds", "message"]
    found: pd.DataFrame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    found["message"] = found["message"].astype(bool)
    return found


def _sent(effective: dict[str, object]) -> list[int]:
    values = effective.get("bucket_sizes_bytes") or effective.get("message_bytes") or []
    return [int(one) for one in values if isinstance(one, (int, float)) and one > 0] if isinstance(values, list) else []


def _who(row: pd.Series) -> str:
    marks = "".join(f" [{mark}]" for mark in str(row["marks"]).split() if mark != "provisional")
    return words.title(words.clean(str(row["name"]), 40), str(row["cell"])) + marks


def _of_family(row: pd.Series) -> str:
    """A contestant at all its world sizes."""
    return _who(row) + (f", {words.clean(str(row['point']), 60)}" if row["point"] else "")


def _is(cell: object) -> bool:
    return isinstance(cell, Estimate)


def _with(estimate: object, factor: float) -> str:
    """`12.3 (12.1–12.6)`."""
    if not isinstance(estimate, Estimate):
        return NOTHING
    value, low, high = (bound * factor for bound in (estimate.value, estimate.low, estimate.high))
    if not all(map(_finite, (low, high))):
        return words.significant(value)
    return f"{words.significant(value)} ({words.significant(low)} … {words.significant(high)})".replace("-", "−")


def _finite(value: float) -> bool:
    return abs(value) < float("inf")


def _plain(estimate: object, digits: int = 3) -> str:
    if not isinstance(estimate, Estimate):
        return NOTHING
    value, low, high = (words.significant(one, digits) if _finite(one) else "" for one in
                        (estimate.value, estimate.low, estimate.high))  # fmt: skip
    return f"{value} ({low} … {high})" if high and _finite(estimate.low) and estimate.low != estimate.high else value


def _percent(estimate: object) -> str:
    if not isinstance(estimate, Estimate):
        return NOTHING
    value, low, high = (f"{one * 100:.1f}" if _finite(one) else "" for one in
                        (estimate.value, estimate.low, estimate.high))  # fmt: skip
    return f"{value} % ({low} … {high})" if high and low != high else f"{value} %"


def _error(value: float) -> str:
    return f"{value * 100:.2g} %" if value == value else NOTHING


def _number(value: float) -> str:
    return f"{value:.3f}" if value == value else NOTHING
