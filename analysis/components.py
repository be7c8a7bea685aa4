"""How much values of one kind differ within a launch and from launch to launch: one-way random-effects ANOVA."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Components:
    """Standard deviations of logarithms, so 0.01 is 1 %. None where the blocks do not tell."""

    within: float | None
    """Of the blocks of one launch."""
    between: float | None
    """Of the launches' own levels, without what blocks add."""

    def plain(self) -> dict[str, float | None]:
        """The mapping of `--json`."""
        return asdict(self)


def components(logs: ArrayLike) -> Components:
    """Variance components by the ANOVA method; logs: shape (launches, blocks), NaN where there is no block.

    within² = MSW; between² = max((MSB − MSW) ÷ n₀, 0), n₀ = (N − Σnᵢ²/N) ÷ (launches − 1), for launches of unequal
    numbers of blocks (Searle, Casella and McCulloch, *Variance Components*, 1992, section 3.6).
    """
    values = np.atleast_2d(np.asarray(logs, dtype=float))
    values = values[~np.isnan(values).all(axis=1)]
    sizes = np.sum(~np.isnan(values), axis=1)
    total, launches = int(sizes.sum()), len(sizes)
    if total == launches:
        return Components(None, None)
    means = np.nanmean(values, axis=1)
    within = float(np.nansum((values - means[:, None]) ** 2)) / (total - launches)
    if launches < 2:
        return Components(within**0.5, None)
    between = float(np.sum(sizes * (means - np.nanmean(values)) ** 2)) / (launches - 1)
    typical = (total - float(np.sum(sizes**2)) / total) / (launches - 1)
    return Components(within**0.5, max((between - within) / typical, 0.0) ** 0.5)
