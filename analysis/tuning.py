"""What the settings of a sub-grid do to the step time, engine by engine. Ratios are of step times."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import stats
from analysis.pairing import Pairing
from analysis.speedup import launch_medians
from analysis.versus import fields, pairing_of

WHO = ["study", "point", "model", "at", "world_size", "cell", "name", "marks"]
PREFIX = "settings."


def tuning(blocks: pd.DataFrame, level: float = stats.LEVEL) -> pd.DataFrame:
    """One row a contestant of each engine/transport that a study measured with several settings.

    WHO, `settings.KEY` columns, Estimates `step_time_s` (median of launches and range) and `against_best` (step time ÷
    that of the cell's fastest, paired by launch), `best`, and `tied`: the interval does not exclude 1, or no launch has
    both. Intervals hold together with `level` over all pairs of the cell, since any of them could have been the one
    with the fastest, and over the looks of the study. Settings of different heats meet through whoever was alive in
    both. blocks: columns of tidy.COLUMNS. Pure.
    """
    swept = [column for column in blocks.columns if str(column).startswith(PREFIX)]
    rows = []
    for _, field in fields(blocks):
        cells = field[field["copy"] == 0].groupby("cell", sort=False)
        many = [cell for _, cell in cells if cell["contestant"].nunique() > 1]
        if many:
            pairing = pairing_of(field)
            rows += [row for cell in many for row in _cell(pairing, cell, swept, level)]
    found: pd.DataFrame = pd.DataFrame(rows, columns=[*WHO, *swept, "step_time_s", "against_best", "best", "tied"])
    return found


def _cell(pairing: Pairing, own: pd.DataFrame, swept: list[str], level: float) -> list[dict[str, Any]]:
    members = own.drop_duplicates("contestant")
    first = int(members["contestant"].iloc[0])
    logs = {place: pairing.of(place, first).logs for place in map(int, members["contestant"])}
    best = min((place for place in logs if len(logs[place])), key=lambda place: float(logs[place].mean()))
    each = stats.simultaneous(level, len(logs) * (len(logs) - 1) // 2, int(members["looks"].iloc[0]))
    rows = []
    for _, one in members.iterrows():
        place = int(one["contestant"])
        found = pairing.of(place, best).logs
        ratio = stats.ratio_of_pairs(found, each) if len(found) and place != best else None
        row = {name: one[name] for name in [*WHO, *swept]} | {"best": place == best, "against_best": ratio}
        row["tied"] = ratio is None or stats.direction(ratio) is None
        rows.append(row | {"step_time_s": launch_medians(own[own["contestant"] == place])["step_time_s"]})
    return rows
