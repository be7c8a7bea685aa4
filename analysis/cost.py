"""What a million samples cost, from throughput and a price per node and hour. The currency is that of the price."""

from __future__ import annotations

import pandas as pd

from analysis.estimate import Estimate


def cost(scaled: pd.DataFrame, price_per_node_hour: float, samples_per_epoch: int | None = None) -> pd.DataFrame:
    """`scaled` (a result of `scaling`) with Estimate `cost_per_million`, and `cost_per_epoch` where samples are given.

    = price × nodes × samples ÷ throughput ÷ 3600. Raises ValueError for a price that is not above 0. Pure.
    """
    if not price_per_node_hour > 0:
        raise ValueError(f"price_per_node_hour={price_per_node_hour}: must be above 0")
    counts = {"cost_per_million": 1_000_000}
    counts |= {"cost_per_epoch": samples_per_epoch} if samples_per_epoch else {}
    rows = list(zip(scaled["nodes"], scaled["throughput"], strict=True))
    found: pd.DataFrame = scaled.copy()
    for name, count in counts.items():
        costs = [_of(nodes * price_per_node_hour / 3600 * count, rate) for nodes, rate in rows]
        found[name] = pd.Series(costs, index=scaled.index, dtype=object)
    return found


def _of(factor: float, rate: Estimate) -> Estimate:
    """factor ÷ rate: the bounds change places."""
    return Estimate(factor / rate.value, factor / rate.high, factor / rate.low, rate.level, rate.n, "price")
