"""Throughput, speed-up and efficiency against each named baseline, from the tidy table. 1 is perfect efficiency.

local: the bare model in one process · wrapped_at_1: the same engine and settings with one rank · smallest: the same at
the smallest world size measured. Weak scaling (equal batch a rank) where it was measured, else strong (equal in all).
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import stats
from analysis.estimate import Estimate
from analysis.marks import APART
from analysis.pairing import Pairing

BASELINES = ("local", "wrapped_at_1", "smallest")
WHO = ["study", "model", "at", "name", "point", "cell", "marks", "weak", "strong", "nodes", "world_size", "contestant"]


def scaling(blocks: pd.DataFrame) -> pd.DataFrame:
    """One row a contestant: WHO, `kind` (weak, strong or one size), and as Estimates `step_time_s`, `throughput`
    (median of launches, with their range), `speed_up_B` and `efficiency_B` for each B in BASELINES (paired by launch,
    each with stats.LEVEL over the looks of the study; None where it was not measured).

    efficiency = throughput a rank ÷ throughput a rank of the baseline; speed-up = throughput ÷ throughput of the
    baseline = efficiency × ranks ÷ ranks of the baseline. blocks: columns of tidy.COLUMNS. Pure.
    """
    rows = [row for _, own in blocks[blocks["copy"] == 0].groupby("study", sort=False) for row in _study(own)]
    estimates = [f"{kind}_{base}" for base in BASELINES for kind in ("speed_up", "efficiency")]
    found: pd.DataFrame = pd.DataFrame(rows, columns=[*WHO, "kind", "step_time_s", "throughput", *estimates])
    return found


def _study(blocks: pd.DataFrame) -> list[dict[str, Any]]:
    pairing = Pairing({}, blocks)
    sizes = {kind: blocks.groupby(kind)["world_size"].nunique() for kind in ("weak", "strong")}
    members = blocks.drop_duplicates("contestant").sort_values("world_size", kind="stable")
    rows = []
    for _, one in members.sort_values("contestant").iterrows():
        many = [kind for kind in ("weak", "strong") if sizes[kind][one[kind]] > 1]
        row = {name: one[name] for name in WHO} | {"kind": many[0] if many else "one size"}
        row |= launch_medians(blocks[blocks["contestant"] == one["contestant"]])
        for name, base in _bases(members, one).items():
            found = _efficiency(pairing, blocks, one, base)
            ranks = one["world_size"] / base["world_size"]
            row |= {f"efficiency_{name}": found, f"speed_up_{name}": found.scaled(ranks, "times") if found else None}
        rows.append(row)
    return rows


def launch_medians(own: pd.DataFrame) -> dict[str, Estimate]:
    """`step_time_s` and `throughput` of the blocks of one contestant: median over launches and their range."""
    launches = [group for _, group in own.groupby("launch")]
    times = [stats.step_time(one["steps"], one["wall_s"]) for one in launches]
    rates = [stats.throughput(one["samples"], one["wall_s"]) for one in launches]
    unit = f"{own['sample'].iloc[0]}/s"
    return {
        "step_time_s": stats.median_of_launches(times, "s"),
        "throughput": stats.median_of_launches(rates, unit),
    }


def _bases(members: pd.DataFrame, one: pd.Series) -> dict[str, pd.Series]:
    """The rows of the baselines, weak before strong. members: by world size."""
    found: dict[str, pd.Series] = {}
    for kind in ("weak", "strong"):
        same = members[members[kind].eq(one[kind])]
        local = members[(members["engine"] == "local") & members[f"local_{kind}"].eq(one[f"local_{kind}"])]
        wanted = {"local": local, "wrapped_at_1": same[same["world_size"] == 1], "smallest": same}
        for name, rows in wanted.items():
            if len(rows) and (name != "smallest" or rows["world_size"].nunique() > 1):
                found.setdefault(name, rows.iloc[0])
    return found


def is_apart(carried: str) -> bool:
    """Whether rows with these marks (space between) are compared only with their like."""
    return not APART.isdisjoint(carried.split())


def _efficiency(pairing: Pairing, blocks: pd.DataFrame, one: pd.Series, base: pd.Series) -> Estimate | None:
    logs = pairing.direct(int(base["contestant"]), int(one["contestant"])).logs
    if not len(logs):
        return None
    work = _batch(blocks, one) / _batch(blocks, base)
    return stats.ratio_of_pairs(logs, stats.simultaneous(stats.LEVEL, 1, int(one["looks"]))).scaled(work, "fraction")


def _batch(blocks: pd.DataFrame, one: pd.Series) -> float:
    """Samples of one rank in a step."""
    first = blocks[blocks["contestant"] == one["contestant"]].iloc[0]
    return float(first["samples"] / first["steps"] / one["world_size"])
