"""A study reduced to what is shown: estimates, comparisons with verdicts, failures and warnings. Seconds.

`summarise` gives the object of `--json`; tables, figures and reports render the `Summary` that `reduce` gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import alike, compare, curve, doubts, marks, noise, scaling, stats, table
from analysis.compare import Comparison, Entrant
from analysis.components import components
from analysis.cost import MILLION
from analysis.estimate import Estimate
from analysis.launch import AGAIN, CONFIRM, MAIN
from analysis.meetings import meetings
from analysis.noise import Control
from analysis.pairing import Pairing, members
from analysis.rows import Failure, Row, Summary
from analysis.samples import PERCENTILES
from analysis.table import Records


def summarise(study_folder: Path) -> dict[str, Any]:
    """The object of `--json`. Raises UserError when the folder holds no study."""
    return reduce(table.read(study_folder)).plain()


def reduce(records: Records) -> Summary:
    """Estimates, comparisons, failures and warnings of what was read."""
    launches = {int(str(index)): group for index, group in records.launches.groupby("contestant")}
    main = {index: group[group["stage"] == MAIN] for index, group in launches.items()}
    parity = {index: _parity(group) for index, group in launches.items()}
    sound = {i for i, group in main.items() if group["usable"].any() and (parity[i] or {"passed": True})["passed"]}
    pairings = {stage: _pairing(records, sound, stage) for stage in (MAIN, AGAIN, CONFIRM)}
    efficiency = _efficiency(records, sorted(sound), pairings[MAIN])
    same = alike.same_as(records)
    every = [
        _row(records, i, main[i], parity[i], efficiency.get(i), same.get(i), pairings[MAIN])
        for i in range(len(records.case_ids))
    ]
    rows, copies = ([row for row in every if bool(row.contestant.copy) == copy] for copy in (False, True))
    fields = compare.fields([Entrant(row.index, row.contestant, row.marks) for row in rows if row.ranked])
    met = meetings(records, fields, pairings[MAIN], pairings[CONFIRM])
    found = Summary(
        records=records,
        rows=rows,
        copies=copies,
        questions=met.questions,
        chosen=met.chosen,
        comparisons=met.comparisons,
        controls=_controls(records, sound, pairings),
        references=met.references,
        failures=[failure for row in every for failure in _failures(row, launches[row.index])],
        warnings=[],
    )
    found = _weighed(found)
    return replace(found, warnings=list(doubts.warnings(found, main)))


def _controls(records: Records, sound: set[int], pairings: dict[str, Pairing]) -> list[Control]:
    study, launches = records.study, records.launches
    ended = launches[launches["stage"].eq(AGAIN) & launches["status"].ne("missing")]
    tried = ended["contestant"].value_counts().to_dict()
    return list(noise.controls(study.contestants, sound, pairings[MAIN], pairings[AGAIN], tried, study.margin))


def _weighed(found: Summary) -> Summary:
    """With verdicts as the A/A controls leave them."""

    def weigh(comparison: Comparison) -> Comparison:
        return noise.weigh(comparison, found.control_of(found.at(comparison.a)))

    return replace(
        found,
        comparisons=[weigh(comparison) for comparison in found.comparisons],
        questions=[replace(question, comparison=weigh(question.comparison)) for question in found.questions],
    )


def _pairing(records: Records, sound: set[int], stage: str) -> Pairing:
    blocks = records.blocks
    chosen = blocks[blocks["contestant"].isin(list(sound)) & (blocks["stage"] == stage)]
    return Pairing(members(records.study.contestants), chosen)


def _row(
    records: Records,
    index: int,
    launches: pd.DataFrame,
    parity: dict[str, Any] | None,
    efficiency: dict[str, Estimate] | None,
    same: str | None,
    pairing: Pairing,
) -> Row:
    """One contestant by its main launches; efficiency: None where it is not ranked; same: its mark where it is
    `same as` another."""
    contestant, case_id = records.study.contestants[index], records.case_ids[index]
    usable = launches[launches["usable"]]
    ranked = efficiency is not None
    header = records.headers.get(records.keys[index])
    times = pairing.times.get(index, pd.DataFrame())
    unit = f"{contestant.case.model.sample}/s"
    return Row(
        index=index,
        contestant=contestant,
        case_id=case_id,
        step_time_s=stats.median_of_launches(usable["step_time_s"], "s") if ranked else None,
        throughput=stats.median_of_launches(usable["throughput"], unit) if ranked else None,
        energy_per_million=_energy(usable) if ranked else None,
        percentiles=_percentiles(usable) if ranked else {},
        spread=components(np.log(times.to_numpy(dtype=float))),
        efficiency=efficiency or {},
        parity=parity,
        marks=(*marks.of_launches(contestant.case, launches), *([same] if same else [])),
        effective=header.effective if header else {},
        curve=curve.points(records.curves[records.curves["contestant"] == index], contestant.case.cluster.world_size),
    )


def _energy(usable: pd.DataFrame) -> Estimate | None:
    """Wh of a million samples = power ÷ throughput × 10⁶ ÷ 3600, where every launch has its power."""
    if usable["power_w"].isna().any():
        return None
    return stats.median_of_launches(usable["power_w"] / usable["throughput"] * (MILLION / 3600), "Wh")


def _percentiles(usable: pd.DataFrame) -> dict[str, Estimate]:
    columns = {f"p{percent}": usable[f"p{percent}_s"].dropna() for percent in PERCENTILES}
    return {name: stats.median_of_launches(values, "s") for name, values in columns.items() if len(values)}


def _parity(launches: pd.DataFrame) -> dict[str, Any] | None:
    """Of the launch with the largest error, among those that failed the gate if any did. Later launches of a contestant
    are not asked for their gradients again and have no error."""
    gated = launches[launches["parity_passed"].notna()]
    if not len(gated):
        return None
    failed = gated[~gated["parity_passed"].astype(bool)]
    worst = (failed if len(failed) else gated).sort_values("parity_error", na_position="first").iloc[-1]
    numbers = {name: worst[f"parity_{name}"] for name in ("error", "bound")}
    return {"passed": not len(failed), **{k: None if pd.isna(v) else float(v) for k, v in numbers.items()}}


def _efficiency(records: Records, sound: list[int], pairing: Pairing) -> dict[int, dict[str, Estimate]]:
    """Of each contestant that is ranked, by name of the baseline."""
    cases = {index: records.study.contestants[index].case for index in sound}
    level = stats.simultaneous(stats.LEVEL, 1, len(records.study.looks))
    found: dict[int, dict[str, Estimate]] = {}
    for index, bases in scaling.baselines(cases).items():
        estimates = {name: scaling.efficiency(pairing, cases, index, base, level) for name, base in bases.items()}
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
