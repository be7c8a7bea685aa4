"""The numbers of a study as data frames, one a CSV file: seconds, ratios, samples a second, nothing rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import words
from analysis.compare import Comparison
from analysis.components import Components
from analysis.curve import Point
from analysis.estimate import Estimate
from analysis.rows import Failure, Row, Summary
from analysis.table import label

COMPARISON = [
    "point", "model", "world_size", "a", "b", "case_a", "case_b",
    "ratio", "ratio_low", "ratio_high", "ratio_level", "ratio_n", "verdict", "direction", "provisional",
    "sd_within", "sd_between", "marks",
]  # fmt: skip
FAILURE = ["name", "point", "case", "model", "world_size", "launches", "kind", "status", "reason"]

FORMULA = ("=", "+", "-", "@")
"""A spreadsheet takes a text that starts so for a formula."""


def frames(summary: Summary) -> dict[str, pd.DataFrame]:
    """contestants, comparisons, questions, control, failures; launches, the data behind the figure of step times;
    allreduce, if it was timed."""
    asked = [
        {"question": q.question, **_comparison(summary, q.comparison), "confirmed": q.confirmed}
        for q in summary.questions
    ]
    control = [
        {**_comparison(summary, c.comparison), "state": c.state, "established": c.established} for c in summary.controls
    ]
    launches = summary.records.launches.drop(columns=["log_tail", "warnings", "beside"])
    points = [_point(row, point) for row in summary.rows for point in row.curve]
    return {
        "contestants": pd.DataFrame([_contestant(row, summary.cost(row)) for row in summary.rows]),
        "comparisons": pd.DataFrame([_comparison(summary, found) for found in summary.comparisons], columns=COMPARISON),
        **({"questions": pd.DataFrame(asked, columns=["question", *COMPARISON, "confirmed"])} if asked else {}),
        **({"control": pd.DataFrame(control, columns=[*COMPARISON, "state", "established"])} if control else {}),
        "failures": pd.DataFrame([_failure(failure) for failure in summary.failures], columns=FAILURE),
        "launches": launches[launches["status"] != "missing"],
        **({"allreduce": pd.DataFrame(points)} if points else {}),
    }


def to_csv(frame: pd.DataFrame) -> str:
    """CSV whose texts are one line each and no formula."""
    safe = frame.map(lambda value: harmless(value) if isinstance(value, str) else value)
    return str(safe.rename(columns=harmless).to_csv(index=False))


def harmless(text: str) -> str:
    """Without control characters; an apostrophe before what a spreadsheet would compute."""
    shown = words.clean(text)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA) else shown


def _who(row: Row) -> dict[str, Any]:
    case = row.case
    return {
        "name": row.contestant.name,
        "point": label(row.contestant.point),
        "case": row.case_id,
        "engine": case.engine,
        "transport": case.transport,
        "model": case.model.name,
        "world_size": row.world_size,
    }


def _contestant(row: Row, costs: Mapping[str, Estimate]) -> dict[str, Any]:
    values = _who(row) | {"per_rank_batch": row.case.data.per_rank_batch, "sample": row.case.model.sample}
    values |= _estimate("step_time_s", row.step_time_s) | _estimate("throughput", row.throughput)
    for name, estimate in row.percentiles.items():
        values |= _estimate(f"step_time_{name}_s", estimate)
    for name, estimate in costs.items():
        values |= _estimate(name, estimate)
    values |= _spread(row.spread)
    for name in ("local", "wrapped_at_1"):
        values |= _estimate(f"efficiency_{name}", row.efficiency.get(name))
    values |= {f"parity_{key}": value for key, value in (row.parity or {}).items()}
    return values | {"marks": " ".join(row.marks)}


def _point(row: Row, point: Point) -> dict[str, Any]:
    estimates = {"time_s": point.time_s, "algbw_gb_per_s": point.algbw, "busbw_gb_per_s": point.busbw}
    values = {key: value for name, one in estimates.items() for key, value in _estimate(name, one).items()}
    return {**_who(row), "bytes": point.bytes, **values}


def _estimate(name: str, estimate: Estimate | None) -> dict[str, Any]:
    plain = estimate.plain() if estimate else dict.fromkeys(("value", "low", "high", "level", "n"))
    return {name: plain["value"], **{f"{name}_{key}": plain[key] for key in ("low", "high", "level", "n")}}


def _spread(spread: Components) -> dict[str, Any]:
    return {f"sd_{name}": value for name, value in spread.plain().items()}


def _comparison(summary: Summary, found: Comparison) -> dict[str, Any]:
    a, b = summary.at(found.a), summary.at(found.b)
    return {
        **_who(a),
        "a": a.contestant.name,
        "b": b.contestant.name,
        "case_a": a.case_id,
        "case_b": b.case_id,
        **_estimate("ratio", found.ratio),
        "verdict": found.verdict,
        "direction": found.direction,
        "provisional": found.provisional,
        **_spread(found.spread),
        "marks": " ".join(found.marks),
    }


def _failure(failure: Failure) -> dict[str, Any]:
    launches = " ".join(map(str, failure.launches))
    return {**_who(failure.row), **{name: getattr(failure, name) for name in FAILURE[-3:]}, "launches": launches}
