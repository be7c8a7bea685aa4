"""The all-reduce curve: time, algbw and busbw against size. Bytes, seconds, and 10^9 bytes a second (GB/s).

algbw and busbw are those of nccl-tests (doc/PERFORMANCE.md): algbw = bytes ÷ time; busbw = algbw × 2(n−1)/n, for each
rank must send and receive that share of the message; so it can be held against the speed of a link at any n.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from analysis import stats
from analysis.estimate import Estimate

COLUMNS: dict[str, str] = {
    "key": "str", "launch": "int64", "bytes": "int64", "iterations": "int64", "seconds": "float64",
}  # fmt: skip
RATE = "GB/s"


def algbw(size: float, seconds: float) -> float:
    """GB/s of a message of `size` bytes that takes `seconds`."""
    return size / seconds / 1e9


def busbw(size: float, seconds: float, ranks: int) -> float:
    """GB/s that the links carry: algbw × 2(ranks − 1)/ranks."""
    return algbw(size, seconds) * 2 * (ranks - 1) / ranks


@dataclass(frozen=True)
class Point:
    """All-reduces of one size by one contestant."""

    bytes: int
    ranks: int
    time_s: Estimate
    """Median over launches of the time of one on the slowest rank."""

    @property
    def algbw(self) -> Estimate:
        return self._rate(algbw(self.bytes, 1.0))

    @property
    def busbw(self) -> Estimate:
        return self._rate(busbw(self.bytes, 1.0, self.ranks))

    def plain(self) -> dict[str, Any]:
        """The mapping of `--json`."""
        found = {"time_s": self.time_s, "algbw": self.algbw, "busbw": self.busbw}
        return {"bytes": self.bytes, **{name: estimate.plain() for name, estimate in found.items()}}

    def _rate(self, one_s: float) -> Estimate:
        """Of a rate that is `one_s` where the time is one second."""
        time = self.time_s
        return Estimate(one_s / time.value, one_s / time.high, one_s / time.low, time.level, time.n, RATE)


def reduce_curve(path: Path, world_size: int) -> tuple[list[dict[str, Any]], list[str]]:
    """One row a size of one launch: bytes, iterations, and seconds of one all-reduce, the mean on the slowest rank.

    Also what was wrong with it. Raises OSError or pyarrow.ArrowException (truncated, no Parquet, other columns).
    """
    table = pq.read_table(path, columns=["rank", "bytes", "seconds"]).to_pandas()
    rows, problems = [], []
    for size, own in table.groupby("bytes"):
        counts = own.groupby("rank").size()
        seconds = own["seconds"].to_numpy(dtype=float)
        if len(counts) != world_size or counts.nunique() != 1:
            problems.append(f"all-reduce of {size} bytes left out: {len(counts)} of {world_size} ranks timed it alike")
        elif not (np.isfinite(seconds) & (seconds > 0)).all():
            problems.append(f"all-reduce of {size} bytes left out: a time is not above 0")
        else:
            slowest = own.groupby("rank")["seconds"].mean().max()
            rows.append({"bytes": int(str(size)), "iterations": int(counts.iloc[0]), "seconds": float(slowest)})
    return rows, problems


def points(launches: pd.DataFrame, ranks: int) -> tuple[Point, ...]:
    """The curve of one contestant; launches: COLUMNS, one row a launch and size."""
    return tuple(
        Point(int(str(size)), ranks, stats.median_of_launches(own["seconds"], "s"))
        for size, own in launches.groupby("bytes")
    )
