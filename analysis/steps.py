"""Single steps of a few launches, for pictures: seconds on the slowest and the median rank. No verdict needs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis import headline
from analysis.rows import Row, Summary
from benches.record import SAMPLES

MOST_PANELS = 6
MOST_LAUNCHES = 3
MOST_STEPS = 2000
"""Points of one contestant; of more, the slowest of each run of neighbours is kept."""
MOST_ROWS = 5_000_000
"""Of one file: a picture is not worth reading more."""


def read(summary: Summary) -> pd.DataFrame:
    """The contestants of the largest worlds, MOST_PANELS at most, in their first sound launches.

    Columns: title, cell, launch, place (0 … in the order they ran), slowest_s, median_s, rank (the slowest one).
    """
    frames = [frame for row in _chosen(summary) if len(frame := _contestant(summary, row))]
    columns = ["title", "cell", "launch", "place", "slowest_s", "median_s", "rank"]
    found: pd.DataFrame = pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
    return found


def _chosen(summary: Summary) -> list[Row]:
    ranked = [row for group in summary.groups() for row in headline.by_world_size(group)[-1] if row.ranked]
    return ranked[:MOST_PANELS]


def _contestant(summary: Summary, row: Row) -> pd.DataFrame:
    launches = summary.records.launches
    own = launches[(launches["contestant"] == row.index) & launches["usable"]].sort_values("launch")
    homes = [(int(str(one.launch)), summary.records.folder / "launches" / str(one.key) / str(one.launch)) for one in
             own.head(MOST_LAUNCHES).itertuples()]  # fmt: skip
    frames = [_launch(home / SAMPLES, number) for number, home in homes if _rows(home / SAMPLES) <= MOST_ROWS]
    found: pd.DataFrame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if not len(found):
        return found
    found["place"] = range(len(found))
    every = -(-len(found) // MOST_STEPS)
    kept: pd.DataFrame = found.loc[found.groupby(found["place"] // every)["slowest_s"].idxmax().to_numpy()]
    kept.insert(0, "title", f"{headline.subject([row])}, {row.title}")
    kept.insert(1, "cell", row.case.cell)
    return kept


def _rows(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)


def _launch(path: Path, number: int) -> pd.DataFrame:
    """One row a step whose times can be: its slowest rank, and the median over ranks."""
    table = pq.read_table(path, columns=["kind", "rank", "block", "step", "seconds"])
    rows: pd.DataFrame = table.filter(pc.equal(table["kind"].cast(pa.string()), "step")).to_pandas()
    sound = rows[np.isfinite(rows["seconds"]) & (rows["seconds"] >= 0)].sort_values("seconds")
    steps = sound.groupby(["block", "step"])
    found: pd.DataFrame = steps[["rank", "seconds"]].last().rename(columns={"seconds": "slowest_s"})
    found["median_s"] = steps["seconds"].median()
    found.insert(0, "launch", number)
    return found
