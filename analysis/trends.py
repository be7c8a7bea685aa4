"""Tests for what launches should not show: a trend, and two groups. Each is made to keep silent on ordinary noise."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

LEVEL = 0.01
"""Share of studies without groups in which the test for them speaks."""
DRIFT_LEVEL = 0.02
"""Share of studies without a trend in which its test speaks: that of five launches can, where all are in order."""
NULL_DRAWS = 20000
"""They resolve p down to 0.00005, LEVEL over 200 contestants."""


def drift(values: ArrayLike) -> float | None:
    """Change from the first value to the last where there is a trend, else None; values: one a launch, in order.

    A trend is there if Kendall's τ with time is significant at DRIFT_LEVEL (Mann 1945; exact for few values, and for
    fewer than 5 never). Its size is Theil and Sen's slope (Sen 1968) × the number of steps: no single launch makes
    either.
    """
    y = np.asarray(values, dtype=float)
    if len(y) < 3 or not np.isfinite(y).all() or np.ptp(y) == 0:
        return None
    time = np.arange(len(y))
    if not distributions.kendalltau(time, y).pvalue < DRIFT_LEVEL:
        return None
    return float(distributions.theilslopes(y, time).slope) * (len(y) - 1)


@dataclass(frozen=True)
class Split:
    """Two groups of values."""

    low: float
    """Mean of the lower group."""
    high: float
    count_low: int
    count_high: int

    @property
    def gap(self) -> float:
        return self.high - self.low


def two_groups(values: ArrayLike, level: float) -> Split | None:
    """The split of values into two groups that one hump does not explain at `level`; None: it does.

    The statistic is the largest share of the sum of squares that lies between two groups, over all splits of the sorted
    values (Engelman and Hartigan, *Percentage points of a test for clusters*, J. Am. Stat. Assoc. 64, 1969). A group of
    one is an outlier, so splits leave two in each. p comes from NULL_DRAWS uniform samples (Barnard's Monte Carlo
    test): the uniform is the one hump that looks most like two (Hartigan and Hartigan, *The dip test of unimodality*,
    Ann. Stat. 13, 1985), while Engelman and Hartigan's own points, of the normal, call 9 % of uniform samples of 14 two
    groups where they say 1 %. Below 6 values it never speaks, nor at levels finer than the draws resolve.
    """
    x = np.sort(np.asarray(values, dtype=float))
    n = len(x)
    if n < 6 or not np.isfinite(x).all() or x[0] == x[-1]:
        return None
    shares = _between(x[None])[0]
    null = _null(n)
    larger = NULL_DRAWS - int(np.searchsorted(null, shares.max()))
    if (1 + larger) / (1 + NULL_DRAWS) > level:
        return None
    at = 2 + int(shares.argmax())
    return Split(float(x[:at].mean()), float(x[at:].mean()), at, n - at)


def _between(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the sum of squares between the first k and the rest, k = 2 … n − 2; (rows, n) to (rows, n − 3)."""
    centred = ordered - ordered.mean(axis=1, keepdims=True)
    n = centred.shape[1]
    sizes = np.arange(2, n - 1)
    sums = np.cumsum(centred, axis=1)[:, 1:-2]
    found: NDArray[np.float64] = sums**2 * n / (sizes * (n - sizes)) / np.sum(centred**2, axis=1, keepdims=True)
    return found


@functools.cache
def _null(n: int) -> NDArray[np.float64]:
    """The statistic of NULL_DRAWS uniform samples of n, ascending; always the same ones."""
    samples = np.sort(np.random.default_rng(n).random((NULL_DRAWS, n)), axis=1)
    return np.sort(_between(samples).max(axis=1))
