"""Estimate: a point, an interval, its level and the number of launches behind it. It knows no data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """`value` lies in [low, high] with confidence `level`. Bounds are infinite where the launches allow no interval."""

    value: float
    low: float
    high: float
    level: float
    """Confidence of the interval, 0 to 1."""
    n: int
    """Launches; for a ratio, pairs of launches."""
    unit: str
    """s, image/s, ratio …"""

    def scaled(self, factor: float, unit: str) -> Estimate:
        """The same in another unit; `factor` > 0."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.level, self.n, unit)

    def plain(self) -> dict[str, Any]:
        """The mapping of `--json`; what is not finite becomes null, for JSON has no infinity."""
        return {key: _finite(value) for key, value in asdict(self).items()}


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
