"""The α–β model of an all-reduce, t = α + β · bytes, piecewise where the data show that the protocol changes.

α: seconds that any message takes · β: seconds a byte (Hockney, Parallel Computing 20, 1994). Libraries change algorithm
and protocol with the size of the message (NCCL: LL, LL128, Simple), and each has its own α and β.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from analysis.estimate import Estimate
from analysis.marks import is_host_bound
from analysis.stats import LEVEL

LEAST = 4
"""Sizes in a piece: two unknowns, and two points that could contradict."""
MOST_PIECES = 3
KEYS = ["study", "contestant", "model", "at", "name", "cell", "marks", "nodes", "world_size"]
"""Columns of tidy.COLUMNS that say whose all-reduce a fit is."""
FLOOR = 1e-3
"""Relative error below which no further piece is bought: clocks and printed tables are no better."""


@dataclass(frozen=True)
class Piece:
    """Sizes that one line describes."""

    from_bytes: int
    to_bytes: int
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    error: float
    """Root mean square of the relative errors, degrees of freedom taken off."""

    def time_s(self, size: float) -> float:
        return self.alpha_s.value + self.beta_s_per_byte.value * size


def fit(sizes: ArrayLike, seconds: ArrayLike, level: float = LEVEL) -> tuple[Piece, ...]:
    """Pieces by size; empty below LEAST sizes. sizes in bytes and seconds above 0, shape (n,), one a size.

    Least squares of relative errors (times span five decades, and noise is relative), α and β not negative. The number
    of pieces, at most MOST_PIECES, is that of the least BIC (Schwarz, Ann. Stat. 6, 1978): n ln(Σr²/n) + k ln n, with
    two unknowns a piece and one a break. Intervals are Student's t, cut at 0.
    """
    order = np.argsort(np.asarray(sizes, dtype=float))
    x, t = (np.asarray(values, dtype=float)[order] for values in (sizes, seconds))
    if len(x) < LEAST:
        return ()
    costs = {(i, j): float(np.sum(_solve(x[i:j], t[i:j])[1] ** 2)) for i, j in _spans(len(x))}
    best = min(_cuts(len(x)), key=lambda cuts: _bic(costs, cuts, len(x)))
    return tuple(_piece(x[i:j], t[i:j], level) for i, j in itertools.pairwise(best))


def _spans(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(i + LEAST, n + 1)]


def _cuts(n: int) -> list[tuple[int, ...]]:
    """Ends of pieces, first 0 and last n."""
    inner = range(LEAST, n - LEAST + 1)
    every = [(0, *cuts, n) for k in range(MOST_PIECES) for cuts in itertools.combinations(inner, k)]
    return [cuts for cuts in every if all(j - i >= LEAST for i, j in itertools.pairwise(cuts))]


def _bic(costs: dict[tuple[int, int], float], cuts: tuple[int, ...], n: int) -> float:
    pieces = len(cuts) - 1
    mean = sum(costs[span] for span in itertools.pairwise(cuts)) / n
    return n * math.log(mean + FLOOR**2) + (3 * pieces - 1) * math.log(n)


def _solve(x: NDArray[np.float64], t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(α, β) with the least relative errors, and those; where one would be negative it is 0."""
    design = np.column_stack([1 / t, x / t])
    found = np.linalg.lstsq(design / np.array([1.0, x.mean()]), np.ones(len(x)), rcond=None)[0] / [1.0, x.mean()]
    if (found < 0).any():
        alone = [float(column.sum() / (column @ column)) for column in design.T]
        ways = [np.array([alone[0], 0.0]), np.array([0.0, alone[1]])]
        found = min(ways, key=lambda way: float(np.sum((design @ way - 1) ** 2)))
    return found, design @ found - 1


def _piece(x: NDArray[np.float64], t: NDArray[np.float64], level: float) -> Piece:
    found, residuals = _solve(x, t)
    n, free = len(x), len(x) - 2
    variance = float(np.sum(residuals**2)) / free
    scale = np.array([1.0, x.mean()])
    design = np.column_stack([1 / t, x / t]) / scale
    errors = np.sqrt(np.diag(np.linalg.pinv(design.T @ design)) * variance) / scale
    half = distributions.t.ppf((1 + level) / 2, free) * errors
    alpha, beta = (
        Estimate(float(v), max(float(v - h), 0.0), float(v + h), level, n, unit)
        for v, h, unit in zip(found, half, ("s", "s/byte"), strict=True)
    )
    return Piece(int(x[0]), int(x[-1]), alpha, beta, math.sqrt(variance))


def allreduce_fit(curves: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """The model for each contestant of `curves` (a result of `tidy.curves`), one row a piece.

    KEYS, piece, from_bytes, to_bytes, Estimates alpha_s, beta_s_per_byte and busbw_limit (GB/s for endless messages,
    2(n−1)/n ÷ β), `error`, `refused` (why there is no fit). Points are the medians of launches; a contestant that is
    host-bound has none. Pure.
    """
    rows: list[dict[str, Any]] = []
    for names, own in curves[curves["copy"] == 0].groupby(KEYS, sort=False):
        points = own.groupby("bytes")["seconds"].median()
        who = dict(zip(KEYS, names, strict=True))
        bound = is_host_bound(str(who["marks"]))
        pieces = () if bound else fit(points.index.to_numpy(), points.to_numpy(), level)
        why = "host-bound, so left out" if bound else f"{len(points)} sizes; {LEAST} are the least"
        rows += [who | _told(k, piece, int(who["world_size"])) for k, piece in enumerate(pieces)] or [
            who | {"refused": why}
        ]
    columns = ["piece", "from_bytes", "to_bytes", "alpha_s", "beta_s_per_byte", "busbw_limit", "error", "refused"]
    found: pd.DataFrame = pd.DataFrame(rows, columns=[*KEYS, *columns])
    return found


def _told(number: int, piece: Piece, ranks: int) -> dict[str, Any]:
    values = {name: getattr(piece, name) for name in piece.__dataclass_fields__}
    return {"piece": number, **values, "busbw_limit": _limit(piece.beta_s_per_byte, ranks), "refused": ""}


def _limit(beta: Estimate, ranks: int) -> Estimate | None:
    if beta.value <= 0:
        return None
    share = 2 * (ranks - 1) / ranks / 1e9
    high = share / beta.low if beta.low > 0 else math.inf
    return Estimate(share / beta.value, share / beta.high, high, beta.level, beta.n, "GB/s")
