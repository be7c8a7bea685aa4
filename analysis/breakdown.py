"""Where the time of a step goes, as far as step times alone tell: by difference from the baselines. Seconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats as distributions

from analysis.estimate import Estimate
from analysis.stats import LEVEL

PARTS = ("compute_s", "engine_s", "exposed_s")
WHO = ["study", "model", "at", "name", "cell", "marks", "world_size", "contestant"]


def breakdown(blocks: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """One row a contestant with more than one rank whose baselines have the same batch a rank: WHO, then Estimates.

    compute_s: step of the bare model in one process · engine_s: the same engine with one rank, less that · exposed_s:
    the step, less that of the engine with one rank: communication that backward does not hide, waiting for the slowest
    rank, and, where ranks share a host, what they take from each other · exposed_share: exposed_s ÷ step. Means over
    launches that all have, differences paired by launch, so the parts sum to `step_s`. A part without its baseline is
    None. blocks: columns of tidy.COLUMNS. Pure.
    """
    rows = [row for _, own in blocks[blocks["copy"] == 0].groupby("study", sort=False) for row in _study(own, level)]
    found: pd.DataFrame = pd.DataFrame(rows, columns=[*WHO, "step_s", *PARTS, "exposed_share"])
    return found


def _study(blocks: pd.DataFrame, level: float) -> list[dict[str, Any]]:
    sums = blocks.groupby(["contestant", "launch"])[["wall_s", "steps"]].sum()
    times = (sums["wall_s"] / sums["steps"]).unstack("contestant")
    members = blocks.drop_duplicates("contestant")
    rows = []
    for _, one in members[(members["world_size"] > 1) & (members["engine"] != "local")].iterrows():
        alone = members[members["weak"].eq(one["weak"]) & members["world_size"].eq(1)]
        local = members[members["engine"].eq("local") & members["local_weak"].eq(one["local_weak"])]
        if not len(alone):
            continue
        places = [int(frame["contestant"].iloc[0]) for frame in (local, alone) if len(frame)]
        # Where no launch has both baselines, the engine's own tells more than nothing.
        parts = _parts(times, int(one["contestant"]), places, level) or _parts(
            times, int(one["contestant"]), places[-1:], level
        )
        if parts:
            rows.append({name: one[name] for name in WHO} | parts)
    return rows


def _parts(times: pd.DataFrame, place: int, bases: list[int], level: float) -> dict[str, Estimate | None]:
    """bases: the bare model, if measured, and the engine with one rank. Empty where no launch has all."""
    common = times[[*bases, place]].dropna()
    step, alone = common[place], common[bases[-1]]
    if not len(common):
        return {}
    found: dict[str, Estimate | None] = dict.fromkeys(("step_s", *PARTS, "exposed_share"))
    found |= {"step_s": mean(step, "s", level), "exposed_s": mean(step - alone, "s", level)}
    found["exposed_share"] = mean((step - alone) / step, "fraction", level)
    if len(bases) > 1:
        local = common[bases[0]]
        found |= {"compute_s": mean(local, "s", level), "engine_s": mean(alone - local, "s", level)}
    return found


def mean(values: ArrayLike, unit: str, level: float = LEVEL) -> Estimate:
    """Mean of one value a launch with Student's t interval; without bounds where there is one launch."""
    array = np.asarray(values, dtype=float)
    n, middle = len(array), float(np.mean(array))
    if n < 2:
        return Estimate(middle, -math.inf, math.inf, level, n, unit)
    half = float(distributions.t.ppf((1 + level) / 2, n - 1)) * float(np.std(array, ddof=1)) / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half, level, n, unit)
