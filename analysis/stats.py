"""Statistics on arrays, one value a launch. Times in seconds; a ratio is step time of a ÷ step time of b.

The launch is the replicate: blocks only sharpen a launch's mean, and no interval pools blocks of several launches.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from analysis.estimate import Estimate

Word = Literal["equivalent", "slower", "faster", "inconclusive"]
Direction = Literal["slower", "faster"]

LEVEL = 0.95
"""Joint confidence of a study's verdicts."""
PROVISIONAL_BELOW = 5
"""Launches under which a verdict is provisional."""


def throughput(samples: ArrayLike, wall_s: ArrayLike) -> float:
    """Samples a second over whole blocks: the one throughput formula of the suite.

    samples: global samples (all ranks) of each block, shape (blocks,) · wall_s: seconds of each block on its slowest
    rank, shape (blocks,). Returns Σ samples ÷ Σ seconds, so that it does not matter how steps are split in blocks.
    """
    return float(np.sum(samples)) / float(np.sum(wall_s))


def step_time(steps: ArrayLike, wall_s: ArrayLike) -> float:
    """Seconds a step over whole blocks: Σ seconds of the slowest rank ÷ Σ steps; both of shape (blocks,)."""
    return float(np.sum(wall_s)) / float(np.sum(steps))


def median_of_launches(values: ArrayLike, unit: str) -> Estimate:
    """Median over launches with their spread, minimum to maximum; values: one a launch, shape (n,), n ≥ 1.

    The extremes of n independent launches enclose the median of all launches with probability 1 − 2^(1−n), whatever
    the distribution (David and Nagaraja, *Order Statistics*, 3rd ed., section 7.1); that is the level given.
    """
    array = np.asarray(values, dtype=float)
    n = len(array)
    return Estimate(float(np.median(array)), float(array.min()), float(array.max()), 1 - 2.0 ** (1 - n), n, unit)


def ratio_of_pairs(log_ratios: ArrayLike, level: float = LEVEL) -> Estimate:
    """Geometric mean of paired ratios with Student's t interval; log_ratios: one a pair of launches, shape (n,), n ≥ 1.

    exp(mean ± t(n−1, (1+level)/2) · sd/√n). One pair gives no interval: its bounds are 0 and infinity.
    """
    array = np.asarray(log_ratios, dtype=float)
    n, mean = len(array), float(np.mean(array))
    if n < 2:
        return Estimate(math.exp(mean), 0.0, math.inf, level, n, "ratio")
    half = float(distributions.t.ppf((1 + level) / 2, n - 1)) * float(np.std(array, ddof=1)) / math.sqrt(n)
    # Few, wildly different launches: the bound may lie beyond what a float holds.
    low, high = np.exp(np.clip([mean - half, mean + half], -700.0, 700.0))
    return Estimate(math.exp(mean), float(low), float(high), level, n, "ratio")


def simultaneous(level: float, comparisons: int) -> float:
    """Level of each of several intervals that all hold together with at least `level` (Bonferroni, Dunn 1961)."""
    return 1 - (1 - level) / max(comparisons, 1)


def verdict(ratio: Estimate, margin: float) -> Word:
    """equivalent: the interval lies inside [1/(1+margin), 1+margin]; else slower: low > 1; faster: high < 1."""
    if ratio.low >= 1 / (1 + margin) and ratio.high <= 1 + margin:
        return "equivalent"
    return direction(ratio) or "inconclusive"


def direction(ratio: Estimate) -> Direction | None:
    """What the interval says of a, margin aside: slower or faster than b where it excludes 1, else None."""
    if ratio.low > 1:
        return "slower"
    return "faster" if ratio.high < 1 else None


def log_ratios(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per-launch means of paired log-ratios; a, b: positive step times, shape (launches, blocks), paired by place.

    NaN marks a block that was not measured; a launch without one common block gives NaN.
    """
    logs = np.log(a) - np.log(b)
    counts = np.sum(~np.isnan(logs), axis=1)
    return np.where(counts > 0, np.nansum(logs, axis=1) / np.maximum(counts, 1), np.nan)
