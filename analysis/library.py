"""The analysis for notebooks: `from analysis import library`. Pure functions from DataFrame to DataFrame.

A cell that was estimated holds an Estimate (value, low, high, level, n, unit); `values` turns such columns to numbers.
"""

from __future__ import annotations

import pandas as pd

from analysis.alphabeta import allreduce_fit
from analysis.breakdown import breakdown
from analysis.cost import cost
from analysis.estimate import Estimate
from analysis.laws import laws
from analysis.speedup import scaling
from analysis.tidy import COLUMNS, CURVE_COLUMNS, curves, load
from analysis.tuning import tuning
from analysis.versus import compare

__all__ = [
    "COLUMNS",
    "CURVE_COLUMNS",
    "allreduce_fit",
    "breakdown",
    "compare",
    "cost",
    "curves",
    "laws",
    "load",
    "scaling",
    "tuning",
    "values",
]


def values(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with each column of Estimates as numbers, its bounds beside it: `ratio`, `ratio_low`, `ratio_high`,
    `ratio_level`, `ratio_n`. What plots and CSV take. Pure."""
    columns: dict[str, pd.Series] = {}
    for name, column in frame.items():
        if column.map(lambda cell: isinstance(cell, Estimate)).any():
            for field, suffix in (("value", ""), ("low", "_low"), ("high", "_high"), ("level", "_level"), ("n", "_n")):
                columns[f"{name}{suffix}"] = column.map(lambda cell, field=field: getattr(cell, field, None))
        else:
            columns[str(name)] = column
    found: pd.DataFrame = pd.DataFrame(columns)
    return found
