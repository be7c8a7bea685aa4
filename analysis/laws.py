"""Amdahl's law and the Universal Scalability Law, fitted to throughput over ranks. Intervals are Student's t.

Amdahl (AFIPS 1967): X(n) = λ n ÷ (1 + σ (n − 1)), σ the serial share. USL (Gunther, *Guerrilla Capacity Planning*,
2007, ch. 4): X(n) = λ n ÷ (1 + σ (n − 1) + κ n (n − 1)), κ the cost of keeping all ranks in agreement; κ = 0 is Amdahl.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import optimize
from scipy import stats as distributions

from analysis.estimate import Estimate
from analysis.marks import is_host_bound
from analysis.stats import LEVEL

Law = Literal["amdahl", "usl"]
UNITS = {"rate": "samples/s", "sigma": "fraction", "kappa": "fraction"}
PARAMETERS: dict[Law, tuple[str, ...]] = {"amdahl": ("rate", "sigma"), "usl": ("rate", "sigma", "kappa")}


@dataclass(frozen=True)
class Fit:
    """One law fitted to one curve, or why it was not."""

    law: Law
    parameters: dict[str, Estimate]
    """rate λ in samples/s of one rank, sigma σ, and kappa κ of the USL. Empty where it was refused."""
    error: float
    """Root mean square of the relative errors of the points, with the degrees of freedom taken off."""
    r2: float
    """Share of the variance of log efficiency that is explained; NaN where efficiency does not vary."""
    refused: str
    """Empty, or the reason in words."""

    @property
    def peak(self) -> float | None:
        """Ranks at which throughput is highest, √((1 − σ) ÷ κ); None where the fitted curve has no peak."""
        sigma, kappa = (self.parameters.get(name) for name in ("sigma", "kappa"))
        if sigma is None or kappa is None or kappa.value <= 0 or sigma.value >= 1:
            return None
        return math.sqrt((1 - sigma.value) / kappa.value)

    def at(self, ranks: float) -> float:
        """Throughput that the law gives."""
        return float(throughput(np.array([ranks]), *(one.value for one in self.parameters.values()))[0])


def throughput(n: NDArray[np.float64], rate: float, sigma: float, kappa: float = 0.0) -> NDArray[np.float64]:
    """X(n) of the USL; n: ranks, any shape."""
    return rate * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


def fit(law: Law, ranks: ArrayLike, rates: ArrayLike, level: float = LEVEL) -> Fit:
    """Least squares of log throughput, for noise is relative; ranks, rates: one a world size, rates above 0.

    Refused unless there are more different world sizes than parameters: a curve through all points says nothing of how
    well it fits. σ in [0, 1], κ ≥ 0; intervals are cut there, and a parameter at its bound is one that the data do not
    call for.
    """
    n, x = (np.asarray(values, dtype=float) for values in (ranks, rates))
    names = PARAMETERS[law]
    sizes = len(np.unique(n))
    if sizes <= len(names):
        least = len(names) + 1
        return Fit(law, {}, math.nan, math.nan, f"{sizes} world sizes; {least} are the least for {len(names)} unknowns")
    # Scaled by the first point, so that all unknowns are of the order of one.
    unit = float(x[np.argmin(n)] / n.min())
    upper = [np.inf, 1.0, np.inf][: len(names)]

    def residuals(p: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(throughput(n, p[0], *p[1:])) - np.log(x / unit)

    start = [1.0, 0.01, 1e-4][: len(names)]
    done = optimize.least_squares(residuals, start, bounds=([1e-9, 0.0, 0.0][: len(names)], upper), xtol=1e-14,
                                  ftol=1e-14, gtol=1e-14, x_scale=[1.0, 0.1, 0.01][: len(names)])  # fmt: skip
    free = len(n) - len(names)
    variance = float(np.sum(done.fun**2)) / free
    widths = _widths(done.jac, variance, free, level)
    bounds = zip(names, done.x, widths, [0.0, 0.0, 0.0], upper, strict=False)
    found = {name: _cut(value, width, low, high, level, len(n), name) for name, value, width, low, high in bounds}
    found["rate"] = found["rate"].scaled(unit, UNITS["rate"])
    return Fit(law, found, math.sqrt(variance), _r2(n, x, done.fun), "")


def _widths(jacobian: NDArray[np.float64], variance: float, free: int, level: float) -> NDArray[np.float64]:
    """Half-widths t · √(s² (JᵀJ)⁻¹) of the linearised problem."""
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * variance
    half: NDArray[np.float64] = distributions.t.ppf((1 + level) / 2, free) * np.sqrt(np.diag(covariance))
    return half


def _cut(value: float, half: float, low: float, high: float, level: float, n: int, name: str) -> Estimate:
    return Estimate(float(value), max(value - half, low), min(value + half, high), level, n, UNITS[name])


def _r2(n: NDArray[np.float64], x: NDArray[np.float64], residuals: NDArray[np.float64]) -> float:
    """Of efficiency: throughput itself grows with n under any law, so that its R² is always near 1."""
    efficiency = np.log(x / n)
    total = float(np.sum((efficiency - efficiency.mean()) ** 2))
    return 1 - float(np.sum(residuals**2)) / total if total > 1e-18 else math.nan


def laws(scaled: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """Both laws for each family of `scaled` (a result of `scaling`) with several world sizes.

    One row a family and law: study, model, name, point (what all of the family share of it), cell, kind, law, sizes
    (world sizes of the points), left_out (those of host-bound points, which tell of the host and not of what it stands
    for), Estimates `rate`, `sigma`, `kappa`, then `error`, `r2`, `peak` (ranks), `refused`. Points are the medians of
    launches. Pure.
    """
    rows: list[dict[str, Any]] = []
    for kind in ("weak", "strong"):
        own = scaled[scaled["kind"] == kind]
        for _, family in own.groupby(["study", kind], sort=False):
            rows += [_row(family, kind, law, level) for law in PARAMETERS]
    columns = ["study", "model", "name", "point", "cell", "marks", "kind", "law", "sizes", "left_out", *UNITS]
    made: pd.DataFrame = pd.DataFrame(rows, columns=[*columns, "error", "r2", "peak", "refused"])
    return made


def _row(family: pd.DataFrame, kind: str, law: Law, level: float) -> dict[str, Any]:
    bound = family["marks"].map(is_host_bound)
    points = family[~bound]
    rates: Sequence[float] = [estimate.value for estimate in points["throughput"]]
    found = fit(law, points["world_size"], rates, level)
    largest = (points if len(points) else family).sort_values("world_size").iloc[-1]
    who = {name: largest[name] for name in ("study", "model", "name", "cell", "marks")}
    who["point"] = _shared(family["point"])
    fitted = {"error": found.error, "r2": found.r2, "peak": found.peak, "refused": found.refused}
    sizes, left_out = (sorted(own["world_size"].unique()) for own in (points, family[bound]))
    return who | {"kind": kind, "law": law, "sizes": sizes, "left_out": left_out, **found.parameters, **fitted}


def _shared(points: Iterable[str]) -> str:
    """What is the same in all of these points, `key=value, key=value`."""
    parts = [point.split(", ") for point in points]
    return ", ".join(part for part in parts[0] if all(part in other for other in parts))
