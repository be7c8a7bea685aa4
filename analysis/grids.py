"""The tables of a study as text, the same for the terminal and every report. Milliseconds and per cent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from analysis import headline, words
from analysis.curve import Point
from analysis.estimate import Estimate
from analysis.rows import Failure, Row, Summary

NOTHING = "–"
LEGEND = (
    "faster, slower: 10 % faster is a step that takes 10 % less time",
    "step time: median of launches (fastest–slowest), each its blocks' time on the slowest rank ÷ their steps",
    "vs, interval: step time against the reference, mean over pairs of launches; all intervals of the study "
    "hold together with 95 %",
)
EFFICIENCY_LEGEND = (
    "eff.: throughput ÷ (ranks × throughput of the baseline): local, the bare model in one process, or at 1, "
    "the same engine with one rank",
)
CURVE_LEGEND = (
    "time: of one all-reduce in place on the slowest rank, the mean within a launch, the median of launches; after the "
    "timed steps, with nothing else to do",
    "busbw: bytes ÷ time × 2(n−1)/n in 10^9 bytes a second, as nccl-tests defines it",
)
STEPS_LEGEND = (
    "p50, p95, p99: of the steps of a launch on its slowest rank; median of launches (fastest–slowest). p95 and p99 "
    "take 20 and 100 steps a launch",
    "sd within, between: of the logarithm from block to block of a launch, and from launch to launch; only more "
    "launches make up for the latter",
)
COST_LEGEND = (
    "cost: price × nodes × samples ÷ throughput ÷ 3600, in the currency of the price; median of launches "
    "(cheapest–dearest). A node counts whole, however few ranks it has, and a virtual one like a real one",
)
ENERGY_LEGEND = (
    "energy: power ÷ throughput; power is the mean during the blocks, of the GPUs of all ranks or of the processor "
    "packages of all hosts, whatever else ran there; median of launches (least–most)",
)
COSTS = {
    "cost_per_million": "a million samples",
    "cost_per_epoch": "an epoch",
    "energy_per_million": "Wh a million samples",
}
"""Columns by what `Summary.cost` finds."""
LONGEST_HEAD = 14
"""Characters of a name that a column's title has room for."""

Align = Literal["left", "right"]


@dataclass(frozen=True)
class Column:
    """A column of a grid."""

    title: str
    align: Align = "left"
    wide: bool = False
    """Left out where the page is narrow."""

    @property
    def line(self) -> str:
        """The title in one line; `title` may break where a narrow column needs it."""
        return self.title.replace("\n", " ")


@dataclass(frozen=True)
class Grid:
    """A table of text. Cells are made harmless by words.clean and still to be escaped for their format."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    sections: frozenset[int] = field(default_factory=frozenset)
    """Rows before which a line is drawn."""

    @property
    def named(self) -> int:
        """Place of the column that names a row."""
        titles = [column.title for column in self.columns]
        return titles.index("contestant") if "contestant" in titles else 0


def contestants(summary: Summary, group: Sequence[Row]) -> Grid:
    """One row a contestant of one table; see `Summary.groups`."""
    provisional = {"provisional" in row.marks for row in group if row.ranked} == {True}
    makers = _makers(summary, group, provisional)
    sizes = [row.world_size for row in group]
    return Grid(
        title=_title(group),
        columns=[column for column, _ in makers],
        rows=[[make(row) for _, make in makers] for row in group],
        sections=frozenset(i for i in range(1, len(sizes)) if sizes[i] != sizes[i - 1]),
    )


def legend(summary: Summary) -> tuple[str, ...]:
    """What the columns of `contestants` mean."""
    return LEGEND + (EFFICIENCY_LEGEND if _efficiencies(summary.rows) else ())


def _makers(summary: Summary, group: Sequence[Row], provisional: bool) -> list[tuple[Column, Callable[[Row], str]]]:
    against = {summary.rows[summary.references[row.index]].title for row in group if row.index in summary.references}
    reference = against.pop() if len(against) == 1 else ""
    reference = reference if 0 < len(reference) <= LONGEST_HEAD else "reference"
    return [
        (Column("ranks", "right"), _shape),
        (Column("contestant"), _contestant),
        (Column("step time, ms"), _step_time),
        (Column("n", "right"), lambda row: str(row.step_time_s.n) if row.step_time_s else NOTHING),
        (Column(f"{words.clean(group[0].case.model.sample, 12)}/s", "right"), _rate),
        *_efficiencies(group),
        (Column("parity", wide=True), _parity),
        (Column(f"vs\n{reference}", "right"), lambda row: _change(summary, row)),
        (Column("interval", "right", wide=True), lambda row: _interval(summary, row)),
        (Column("verdict\n(provisional)" if provisional else "verdict"), lambda r: _verdict(summary, r, provisional)),
    ]


def _efficiencies(group: Sequence[Row]) -> list[tuple[Column, Callable[[Row], str]]]:
    """Against those baselines that were measured."""
    makers: list[tuple[Column, Callable[[Row], str]]] = [
        (Column("eff.\nlocal", "right"), lambda row: _share(row.efficiency.get("local"))),
        (Column("eff.\nat 1", "right", wide=True), lambda row: _share(row.efficiency.get("wrapped_at_1"))),
    ]
    return [maker for maker in makers if any(maker[1](row) != NOTHING for row in group)]


def _title(group: Sequence[Row]) -> str:
    return ", ".join(words.clean(part) for part in group[0].group if part)


def _contestant(row: Row) -> str:
    shown = "".join(f" [{mark}]" for mark in row.marks if mark != "provisional")
    return words.clean(row.title, 40) + shown


def _percentile(found: Estimate | None) -> str:
    return words.spread(found.scaled(1e3, "ms")) if found else NOTHING


def _shape(row: Row) -> str:
    cluster = row.case.cluster
    return f"{row.world_size} ({cluster.nodes}×{cluster.ranks_per_node})" if cluster.nodes > 1 else str(row.world_size)


def _step_time(row: Row) -> str:
    return words.spread(row.step_time_s.scaled(1e3, "ms")) if row.step_time_s else "not ranked"


def _rate(row: Row) -> str:
    return words.significant(row.throughput.value) if row.throughput else NOTHING


def _share(estimate: Estimate | None) -> str:
    return f"{estimate.value:.0%}".replace("%", " %") if estimate else NOTHING


def _parity(row: Row) -> str:
    if row.parity is None:
        return "not run"
    return "passed" if row.parity["passed"] else "failed"


def _change(summary: Summary, row: Row) -> str:
    found = summary.against_reference(row)
    return words.change(found.ratio.value) if found else NOTHING


def _interval(summary: Summary, row: Row) -> str:
    found = summary.against_reference(row)
    return (words.interval(found.ratio) or "none") if found else NOTHING


def _verdict(summary: Summary, row: Row, provisional: bool) -> str:
    """`provisional`: the column says so for all of its rows."""
    found = summary.against_reference(row)
    # A pair has the launches that both have.
    doubtful = found.provisional if found else "provisional" in row.marks
    doubt = " (provisional)" if doubtful and not provisional else ""
    if not row.ranked:
        return "failed parity" if row.parity and not row.parity["passed"] else "failed"
    if summary.references.get(row.index) == row.index:
        return f"reference{doubt}"
    if found is None:
        return f"{'baseline' if row.case.engine == 'local' else 'not compared'}{doubt}"
    leaning = f", {found.direction}" if found.verdict == "equivalent" and found.direction else ""
    return f"{found.verdict}{leaning}{doubt}"


def curves(summary: Summary) -> list[Grid]:
    """The all-reduce itself, one row a size, one column a contestant; see `headline.curve_panels`."""
    return [_curve(rows) for rows in headline.curve_panels(summary)]


def _curve(rows: Sequence[Row]) -> Grid:
    found = [{point.bytes: point for point in row.curve} for row in rows]
    sizes = sorted({size for points in found for size in points})
    cells = [[words.size(size), *(_point(points.get(size)) for points in found)] for size in sizes]
    columns = [Column("size", "right"), *(Column(_contestant(row), "right") for row in rows)]
    return Grid(f"All-reduce, {headline.subject(rows)}: time; busbw in GB/s", columns, cells)


def _point(point: Point | None) -> str:
    if point is None:
        return NOTHING
    return f"{words.duration(point.time_s.value)}; {words.significant(point.busbw.value)}"


def failures(summary: Summary) -> Grid:
    """One row for launches of a contestant that ended alike; parity failures with the size of their error."""
    columns = ["model", "ranks", "contestant", "launches", "status", "reason"]
    rows = [
        [
            words.clean(failure.row.case.model.name, 40),
            _shape(failure.row),
            _contestant(failure.row),
            ", ".join(map(str, failure.launches)),
            failure.status,
            words.clean(failure.reason, 300) + parity_error(failure),
        ]
        for failure in summary.failures
    ]
    return Grid("Launches that failed", [Column(title) for title in columns], rows)


def costs(summary: Summary) -> Grid:
    """One row a contestant that is ranked, where the study has a price or its hardware counted energy."""
    known = [(row, found) for group in summary.groups() for row in group if (found := summary.cost(row))]
    titles = {name: title for name, title in COSTS.items() if any(name in found for _, found in known)}
    columns = [Column("model"), Column("ranks", "right"), Column("contestant"), *map(Column, titles.values())]
    rows = [
        [
            words.clean(", ".join(part for part in row.group if part), 60),
            _shape(row),
            _contestant(row),
            *(words.spread(found[name]) if name in found else NOTHING for name in titles),
        ]
        for row, found in known
    ]
    price = summary.records.study.price_per_node_hour
    title = "Cost" if price is None else f"Cost at {price:g} a node and hour"
    return Grid(title if rows else "", columns, rows)


def parity_error(failure: Failure) -> str:
    """` (error 0.012, bound 1e-07)` of the reduction, where the gate was not passed."""
    parity = failure.row.parity
    if failure.kind != "parity" or parity is None or parity["error"] is None:
        return ""
    return f" (error {words.magnitude(parity['error'])}, bound {words.magnitude(parity['bound'])})"


def steps(rows: Sequence[Row]) -> Grid:
    """Percentiles of the steps of one table, and where their time varies."""
    names = list(dict.fromkeys(name for row in rows for name in row.percentiles))
    cells = [
        [
            _shape(row),
            _contestant(row),
            *(_percentile(row.percentiles.get(name)) for name in names),
            words.deviation(row.spread.within),
            words.deviation(row.spread.between),
        ]
        for row in rows
    ]
    columns = [Column("ranks", "right"), Column("contestant"), *(Column(f"{name}, ms") for name in names)]
    return Grid(f"Steps of {_title(rows)}", [*columns, Column("sd within"), Column("sd between")], cells)


def comparisons(summary: Summary) -> Grid:
    """One row a comparison: step time of a ÷ step time of b."""
    columns = ["model", "ranks", "a", "b", "a ÷ b", "interval", "level", "n", "sd within", "sd between", "verdict"]
    rows = []
    for found in summary.comparisons:
        a, b, ratio = summary.at(found.a), summary.at(found.b), found.ratio
        rows.append(
            [
                words.clean(", ".join(part for part in a.group if part), 60),
                _shape(a),
                _contestant(a),
                _contestant(b),
                f"{ratio.value:.3f}",
                f"{ratio.low:.3f} … {ratio.high:.3f}" if words.interval(ratio) else "none",
                f"{ratio.level * 100:.4g} %",
                str(ratio.n),
                words.deviation(found.spread.within),
                words.deviation(found.spread.between),
                words.verdict(found) + "".join(f" [{mark}]" for mark in found.marks),
            ]
        )
    numbers = ("ranks", "a ÷ b", "interval", "level", "n", "sd within", "sd between")
    return Grid("Comparisons", [Column(title, "right" if title in numbers else "left") for title in columns], rows)
