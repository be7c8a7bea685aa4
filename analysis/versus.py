"""Contestants of a tidy table against a reference: the ratio of step times with its verdict, paired by launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import stats
from analysis.pairing import Pairing
from analysis.speedup import is_apart
from benches.schedule import CONTROL_COPY

COLUMNS = ["study", "point", "model", "world_size", "a", "b", "marks", "ratio", "verdict", "direction", "provisional"]


def compare(
    blocks: pd.DataFrame,
    reference: Mapping[str, object] | None = None,
    margin: float = 0.02,
    level: float = stats.LEVEL,
) -> pd.DataFrame:
    """Each contestant against the reference of its study, point, world size and kind of machine; COLUMNS.

    reference: values of columns that it has, such as {"cell": "ddp/gloo"}; where none matches, or by default, the first
    under DDP, else the first. `ratio`: Estimate of step time of a ÷ step time of b; the intervals of all rows hold
    together with `level` (Bonferroni). A contestant of another heat meets the copy of the reference in its own heat.
    blocks: columns of tidy.COLUMNS. Pure.
    """
    met = [(one, other, logs) for _, own in fields(blocks) for one, other, logs in _meetings(own, reference or {})]
    each = stats.simultaneous(level, len(met))
    found: pd.DataFrame = pd.DataFrame([_row(*pair, each, margin) for pair in met], columns=COLUMNS)
    return found


class Meetings:
    """Ratios of contestants of one field, paired by launch, also where they were alive in different heats.

    Then both are taken against somebody who was there in both, the field's reference and its copy, launch by launch; as
    Pairing does it, from the tidy table.
    """

    def __init__(self, field: pd.DataFrame) -> None:
        self.pairing = Pairing((), field)
        members = field.drop_duplicates("contestant").set_index("contestant")
        self.heats = members["heat"]
        copied = members.loc[members["copy"] > 1, "case_id"].unique()
        # A control's copy (1) was alive beside the original.
        there = members[members["case_id"].isin(copied) & (members["copy"] != CONTROL_COPY)]
        self.present = [
            {int(one["heat"]): int(place) for place, one in same.iterrows()} for _, same in there.groupby("case_id")
        ]

    def logs(self, a: int, b: int) -> pd.Series:
        """log(step time of a ÷ step time of b), by launch; without a common launch, no values."""
        heats = self.heats[a], self.heats[b]
        through = next((one for one in self.present if heats[0] != heats[1] and set(heats) <= set(one)), None)
        if through is None:
            return self.pairing.direct(a, b).logs
        left, right = (
            self.pairing.direct(place, through[heat]).logs for place, heat in zip((a, b), heats, strict=True)
        )
        return (left - right).dropna()


def fields(blocks: pd.DataFrame) -> Any:
    """Groups of contestants that are compared with each other, copies among them: one study, point, world size."""
    keys = [blocks["study"], blocks["point"], blocks["world_size"], blocks["marks"].map(is_apart)]
    return blocks[blocks["engine"] != "local"].groupby(keys, sort=False)


def _meetings(own: pd.DataFrame, reference: Mapping[str, object]) -> list[tuple[pd.Series, pd.Series, pd.Series]]:
    meetings = Meetings(own)
    every = own.drop_duplicates("contestant").sort_values("contestant")
    members = every[every["copy"] == 0]
    wanted = members[(members[list(reference)] == pd.Series(reference)).all(axis=1)] if reference else members.iloc[:0]
    ddp = members[members["engine"] == "ddp"]
    other = next(rows.iloc[0] for rows in (wanted, ddp, members) if len(rows))
    found = []
    for _, one in members[members["contestant"] != other["contestant"]].iterrows():
        logs = meetings.logs(int(one["contestant"]), int(other["contestant"]))
        if len(logs):
            found.append((one, other, logs))
    return found


def _row(one: pd.Series, other: pd.Series, logs: pd.Series, level: float, margin: float) -> dict[str, Any]:
    ratio = stats.ratio_of_pairs(logs, level)
    who = {name: one[name] for name in ("study", "point", "model", "world_size", "marks")}
    judged = {"verdict": stats.verdict(ratio, margin), "direction": stats.direction(ratio)}
    provisional = ratio.n < stats.PROVISIONAL_BELOW
    return who | {"a": one["name"], "b": other["name"], "ratio": ratio, "provisional": provisional} | judged
