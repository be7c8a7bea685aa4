"""Contestants of a tidy table against a reference: the ratio of step times with its verdict, paired by launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import stats
from analysis.pairing import Member, Pairing
from analysis.speedup import is_apart

COLUMNS = ["study", "point", "model", "world_size", "a", "b", "marks", "ratio", "verdict", "direction", "provisional"]


def compare(
    blocks: pd.DataFrame,
    reference: Mapping[str, object] | None = None,
    margin: float | None = None,
    level: float = stats.LEVEL,
) -> pd.DataFrame:
    """Each contestant against the reference of its study, point, world size and kind of machine; COLUMNS.

    reference: values of columns that it has, such as {"cell": "ddp/gloo"}; where none matches, or by default, the first
    under DDP, else the first. margin: None takes each study's own. `ratio`: Estimate of step time of a ÷ step time of
    b; the intervals of all rows hold together with `level`, over the looks of their study too (Bonferroni). A
    contestant of another heat meets the copy of the reference in its own heat. blocks: columns of tidy.COLUMNS. Pure.
    """
    met = [(one, other, logs) for _, own in fields(blocks) for one, other, logs in _meetings(own, reference or {})]
    each = [(one, other, logs, stats.simultaneous(level, len(met), one["looks"])) for one, other, logs in met]
    found: pd.DataFrame = pd.DataFrame([_row(*pair, margin) for pair in each], columns=COLUMNS)
    return found


def fields(blocks: pd.DataFrame) -> Any:
    """Groups of contestants that are compared with each other, copies among them: one study, point, world size."""
    keys = [blocks["study"], blocks["point"], blocks["world_size"], blocks["marks"].map(is_apart)]
    return blocks[blocks["engine"] != "local"].groupby(keys, sort=False)


def pairing_of(field: pd.DataFrame) -> Pairing:
    """Pairs of contestants of one of `fields`, also of different heats."""
    places = field.drop_duplicates("contestant")[["contestant", "heat", "copy", "case_id"]]
    found = {int(place): Member(heat, copy, case, None) for place, heat, copy, case in places.itertuples(index=False)}
    return Pairing(found, field)


def _meetings(own: pd.DataFrame, reference: Mapping[str, object]) -> list[tuple[pd.Series, pd.Series, pd.Series]]:
    pairing = pairing_of(own)
    members = own[own["copy"] == 0].drop_duplicates("contestant").sort_values("contestant")
    wanted = members[(members[list(reference)] == pd.Series(reference)).all(axis=1)] if reference else members.iloc[:0]
    ddp = members[members["engine"] == "ddp"]
    other = next(rows.iloc[0] for rows in (wanted, ddp, members) if len(rows))
    found = []
    for _, one in members[members["contestant"] != other["contestant"]].iterrows():
        logs = pairing.of(int(one["contestant"]), int(other["contestant"])).logs
        if len(logs):
            found.append((one, other, logs))
    return found


def _row(one: pd.Series, other: pd.Series, logs: pd.Series, level: float, margin: float | None) -> dict[str, Any]:
    ratio = stats.ratio_of_pairs(logs, level)
    who = {name: one[name] for name in ("study", "point", "model", "world_size", "marks")}
    within = one["margin"] if margin is None else margin
    judged = {"verdict": stats.verdict(ratio, within), "direction": stats.direction(ratio)}
    provisional = ratio.n < stats.PROVISIONAL_BELOW
    return who | {"a": one["name"], "b": other["name"], "ratio": ratio, "provisional": provisional} | judged
