"""Statistics on arrays, one value a launch. Times in seconds; a ratio is step time of a ÷ step time of b.

The launch is the replicate: blocks only sharpen a launch's value, and no interval pools blocks of several launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from analysis.estimate import Estimate

Word = Literal["equivalent", "slower", "faster", "inconclusive"]
Direction = Literal["slower", "faster"]

LEVEL = 0.95
"""Joint confidence of a study's verdicts."""
CONTROL_LEVEL = 0.99
"""Confidence at which an A/A control is judged: it accuses the whole study, so not at one in twenty."""
PROVISIONAL_BELOW = 5
"""Launches under which a verdict is provisional."""
MOST_LAUNCHES = 1000
"""More are no advice."""


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


def ratio_in_two_stages(log_ratios: ArrayLike, first: int, level: float = LEVEL) -> Estimate:
    """Like `ratio_of_pairs` where the spread of the `first` launches planned how many followed.

    log_ratios: one a pair of launches, shape (n,), n ≥ first ≥ 2.

    exp(mean of all ± t(first−1, (1+level)/2) · sd of the first ÷ √n), which covers at exactly `level` for normal values
    (Stein 1945, Ann. Math. Statist. 16: 243). The interval of `ratio_of_pairs` would not: a first spread that is small
    by chance plans few launches, of which it is then a large part.
    """
    array = np.asarray(log_ratios, dtype=float)
    early = ratio_of_pairs(array[:first], level)
    half, value = log_half(early) * math.sqrt(first / len(array)), math.exp(float(np.mean(array)))
    return Estimate(value, value * math.exp(-half), value * math.exp(half), level, len(array), "ratio")


def launches_in_two_stages(first: Estimate, half: float) -> int:
    """Launches in all with which `ratio_in_two_stages` comes to ± `half`, a difference of logarithms.

    first: of the first launches by `ratio_of_pairs`, with n ≥ 2.
    """
    return max(first.n, math.ceil(first.n * (log_half(first) / half) ** 2))


def log_half(ratio: Estimate) -> float:
    """Half the width of an interval that is finite, as a difference of logarithms."""
    return math.log(ratio.high / ratio.low) / 2


def launches_for(ratio: Estimate, half: float) -> int | None:
    """Fewest launches at which the t interval of `ratio` would come to ± `half`, a difference of logarithms.

    ratio: of `ratio_of_pairs` with two launches or more, whose standard deviation is taken to stay. Few launches are
    punished by the quantile far more than by √n: t is 9.9 at 99 % for three, and 2.6 for many. None: more than
    MOST_LAUNCHES.
    """
    quantiles = distributions.t.ppf((1 + ratio.level) / 2, np.arange(1, MOST_LAUNCHES))
    deviation = log_half(ratio) * math.sqrt(ratio.n) / quantiles[ratio.n - 2]
    enough = np.flatnonzero(quantiles * deviation / np.sqrt(np.arange(2, MOST_LAUNCHES + 1)) <= half)
    return int(enough[0]) + 2 if len(enough) else None


def simultaneous(level: float, comparisons: int, looks: int = 1) -> float:
    """Level of each of several intervals that all hold together with at least `level`, whenever one stops looking.

    Bonferroni (Dunn 1961) over comparisons and over looks. Over looks these are repeated confidence intervals (Jennison
    and Turnbull, *Interim analyses: the repeated confidence interval approach*, J. R. Stat. Soc. B 51, 1989) with α
    split evenly, which holds under any stop rule and any dependence; a boundary of theirs would be a little narrower
    but needs normal, not t, statistics. What is shown at the end keeps this level, also when the first look sufficed.
    """
    return 1 - (1 - level) / max(comparisons * looks, 1)


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
    """Per-launch locations of paired log-ratios; a, b: positive step times, shape (launches, blocks), paired by place.

    NaN marks a block that was not measured; a launch without one common block gives NaN.
    """
    return hodges_lehmann(np.log(a) - np.log(b))


def hodges_lehmann(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Location of each row, shape (rows, n) to (rows,): the median of its pairwise means, each value with itself too.

    Hodges and Lehmann, Ann. Math. Stat. 34, 1963. A block in which the machine hiccupped hardly moves it (up to 29 % of
    them may), while for normal noise it is 95.5 % as efficient as the mean; the median has 64 %, and a trimmed mean of
    five blocks a choice to make. It changes sign with the values, so a ÷ b is the inverse of b ÷ a. NaN is left out.
    """
    i, j = np.triu_indices(values.shape[1])
    means = (values[:, i] + values[:, j]) / 2
    found = np.full(len(values), np.nan)
    there = ~np.isnan(means).all(axis=1) if means.shape[1] else np.zeros(len(values), dtype=bool)
    found[there] = np.nanmedian(means[there], axis=1)
    return found


def half_width(ratio: Estimate) -> float:
    """h of the interval value ÷ (1 + h) to value × (1 + h); infinite where there is none."""
    if not (ratio.low > 0 and math.isfinite(ratio.high)):
        return math.inf
    return math.sqrt(ratio.high / ratio.low) - 1


def settled(ratios: Iterable[Estimate], stop_when: float | str, margin: float) -> bool:
    """Whether a study may stop: `verdict`: no ratio is inconclusive; a number: no half-width is above it."""
    if isinstance(stop_when, str):
        return all(verdict(ratio, margin) != "inconclusive" for ratio in ratios)
    return all(half_width(ratio) <= stop_when for ratio in ratios)
