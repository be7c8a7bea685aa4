"""A study reduced to what is shown: estimates, comparisons with verdicts, failures and warnings. Seconds.

`summarise` gives the object of `--json`; tables, figures and reports render the `Summary` that `reduce` gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import alike, compare, curve, doubts, marks, scaling, stats, table
from analysis.compare import Entrant
from analysis.estimate import Estimate
from analysis.rows import Failure, Row, Summary
from analysis.table import Records


def summarise(study_folder: Path) -> dict[str, Any]:
    """The object of `--json`. Raises UserError when the folder holds no study."""
    return reduce(table.read(study_folder)).plain()


def reduce(records: Records) -> Summary:
    """Estimates, comparisons, failures and warnings of what was read."""
    launches = {int(str(index)): group for index, group in records.launches.groupby("contestant")}
    parity = {index: _parity(group) for index, group in launches.items()}
    sound = {i for i, group in launches.items() if group["usable"].any() and (parity[i] or {"passed": True})["passed"]}
    blocks = records.blocks[records.blocks["contestant"].isin(list(sound))]
    efficiency = _efficiency(records, sorted(sound), compare.step_times(blocks))
    same = alike.same_as(records)
    rows = [
        _row(records, i, launches[i], parity[i], efficiency.get(i), same.get(i)) for i in range(len(records.case_ids))
    ]
    fields = compare.fields([Entrant(row.index, row.contestant, row.marks) for row in rows if row.ranked])
    wanted = records.study.reference
    references = {entrant.index: compare.reference_of(field, wanted).index for field in fields for entrant in field}
    meetings = [pair for field in fields for pair in compare.pairs(field, wanted)]
    return Summary(
        records=records,
        rows=rows,
        comparisons=compare.compare(blocks, meetings, records.study.margin),
        references=references,
        failures=[failure for row in rows for failure in _failures(row, launches[row.index])],
        warnings=list(doubts.warnings(records, rows, launches, references)),
    )


def _row(
    records: Records,
    index: int,
    launches: pd.DataFrame,
    parity: dict[str, Any] | None,
    efficiency: dict[str, Estimate] | None,
    same: str | None,
) -> Row:
    """One contestant; efficiency: None where it is not ranked; same: its mark where it is `same as` another."""
    contestant, case_id = records.study.contestants[index], records.case_ids[index]
    usable = launches[launches["usable"]]
    ranked = efficiency is not None
    header = records.headers.get(case_id)
    unit = f"{contestant.case.model.sample}/s"
    return Row(
        index=index,
        contestant=contestant,
        case_id=case_id,
        step_time_s=stats.median_of_launches(usable["step_time_s"], "s") if ranked else None,
        throughput=stats.median_of_launches(usable["throughput"], unit) if ranked else None,
        efficiency=efficiency or {},
        parity=parity,
        marks=(*marks.marks(contestant.case, launches["cpus"].min(), len(usable)), *([same] if same else [])),
        effective=header.effective if header else {},
        curve=curve.points(records.curves[records.curves["contestant"] == index], contestant.case.cluster.world_size),
    )


def _parity(launches: pd.DataFrame) -> dict[str, Any] | None:
    """Of the launch with the largest error, among those that failed the gate if any did."""
    gated = launches[launches["parity_passed"].notna()]
    if not len(gated):
        return None
    failed = gated[~gated["parity_passed"].astype(bool)]
    worst = (failed if len(failed) else gated).sort_values("parity_error").iloc[-1]
    return {"passed": not len(failed), "error": float(worst["parity_error"]), "bound": float(worst["parity_bound"])}


def _efficiency(records: Records, sound: list[int], times: dict[int, pd.DataFrame]) -> dict[int, dict[str, Estimate]]:
    """Of each contestant that is ranked, by name of the baseline."""
    cases = {index: records.study.contestants[index].case for index in sound}
    found: dict[int, dict[str, Estimate]] = {}
    for index, bases in scaling.baselines(cases).items():
        estimates = {name: scaling.efficiency(times, cases, index, base) for name, base in bases.items()}
        found[index] = {name: estimate for name, estimate in estimates.items() if estimate is not None}
    return found


def _failures(row: Row, launches: pd.DataFrame) -> Iterator[Failure]:
    """One failure for all launches that ended for one reason."""
    ended = launches[~launches["status"].isin(["ok", "missing"])].assign(kind="launch")
    if not len(ended):
        return
    ended.loc[ended["parity_passed"].isin([False]), "kind"] = "parity"
    for (kind, status, reason), group in ended.groupby(["kind", "status", "reason"], sort=False):
        numbers, tail = tuple(group["launch"].tolist()), group["log_tail"].iloc[0]
        yield Failure(row, str(kind), numbers, str(status), str(reason), tuple(tail))
