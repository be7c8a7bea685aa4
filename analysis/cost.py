"""What samples cost, from throughput and a price per node and hour. The currency is that of the price."""

from __future__ import annotations

import pandas as pd

from analysis.estimate import Estimate

MILLION = 1_000_000
COSTS = ("cost_per_million", "cost_per_epoch", "energy_per_million")
"""What a row may know: in the currency of the price, and in Wh."""


def cost(scaled: pd.DataFrame, price_per_node_hour: float, samples_per_epoch: int | None = None) -> pd.DataFrame:
    """`scaled` (a result of `scaling`) with Estimate `cost_per_million`, and `cost_per_epoch` where samples are given.

    See `of_samples`. Raises ValueError for a price that is not above 0. Pure.
    """
    if not price_per_node_hour > 0:
        raise ValueError(f"price_per_node_hour={price_per_node_hour}: must be above 0")
    counts = {"cost_per_million": MILLION}
    counts |= {"cost_per_epoch": samples_per_epoch} if samples_per_epoch else {}
    rows = list(zip(scaled["nodes"], scaled["throughput"], strict=True))
    found: pd.DataFrame = scaled.copy()
    for name, count in counts.items():
        costs = [of_samples(count, rate, nodes, price_per_node_hour) for nodes, rate in rows]
        found[name] = pd.Series(costs, index=scaled.index, dtype=object)
    return found


def of_samples(samples: int, rate: Estimate, nodes: int, price_per_node_hour: float) -> Estimate:
    """Price of `samples` at `rate` samples a second on `nodes` nodes = price × nodes × samples ÷ rate ÷ 3600.

    The bounds change places: the slowest launch is the dearest.
    """
    factor = price_per_node_hour * nodes * samples / 3600
    return Estimate(factor / rate.value, factor / rate.high, factor / rate.low, rate.level, rate.n, "price")
