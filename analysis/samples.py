"""`samples.parquet` reduced to one row a block, batch by batch: the raw rows of a launch are never all in memory.

A block that is not whole, or holds a time that cannot be, is left out and named.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS = ["kind", "rank", "block", "step", "seconds"]


def reduce_samples(path: Path, world_size: int) -> tuple[pd.DataFrame, list[str]]:
    """Blocks of one launch, and what was wrong with it.

    Columns: block · steps (timed steps of the block) · wall_s (seconds on the slowest rank).
    Raises OSError or pyarrow.ArrowInvalid (truncated, no Parquet, other columns).
    """
    walls: list[pa.Table] = []
    last_steps: list[pa.Table] = []
    bad_steps = 0
    with pq.ParquetFile(path) as file:
        _check_columns(file.schema_arrow)
        for batch in file.iter_batches(columns=COLUMNS):
            kind = batch.column("kind").cast(pa.string())
            steps = pa.Table.from_batches([batch.filter(pc.equal(kind, "step"))])
            last_steps.append(steps.group_by("block").aggregate([("step", "max")]))
            bad_steps += _count_bad(steps)
            walls.append(pa.Table.from_batches([batch.filter(pc.equal(kind, "block"))]).drop_columns(["kind", "step"]))
    problems = [f"{bad_steps} steps have a negative time or none"] if bad_steps else []
    if not walls:
        return _whole_blocks(pd.DataFrame(columns=["rank", "block", "seconds"]), {}, world_size, problems), problems
    longest = pa.concat_tables(last_steps).group_by("block").aggregate([("step_max", "max")])
    counts = {b: s + 1 for b, s in zip(*(longest[name].to_pylist() for name in ("block", "step_max_max")), strict=True)}
    return _whole_blocks(pa.concat_tables(walls).to_pandas(), counts, world_size, problems), problems


def _check_columns(schema: pa.Schema) -> None:
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise pa.ArrowInvalid(f"no column {', '.join(missing)}")


def _count_bad(steps: pa.Table) -> int:
    seconds = np.asarray(steps["seconds"].to_numpy(), dtype=float)
    return int(np.sum(~np.isfinite(seconds) | (seconds < 0)))


def _whole_blocks(rows: pd.DataFrame, steps: dict[int, int], world_size: int, problems: list[str]) -> pd.DataFrame:
    """One row a sound block; `problems` receives a line for each other one."""
    kept = []
    for block in sorted(rows["block"].unique().tolist()):
        group = rows[rows["block"] == block]
        fault = _fault(group, steps.get(block, 0), world_size)
        if fault:
            problems.append(f"block {block} left out: {fault}")
        else:
            kept.append((block, steps[block], float(group["seconds"].max())))
    blocks: pd.DataFrame = pd.DataFrame(kept, columns=["block", "steps", "wall_s"])
    return blocks


def _fault(group: pd.DataFrame, steps: int, world_size: int) -> str | None:
    ranks = group["rank"].nunique()
    bad = group[~(np.isfinite(group["seconds"]) & (group["seconds"] > 0))]
    if ranks != world_size or len(group) != world_size:
        return f"{len(group)} times from {ranks} of {world_size} ranks"
    if len(bad):
        return f"the time of rank {bad['rank'].iloc[0]} is {bad['seconds'].iloc[0]:g} s"
    return None if steps > 0 else "it has no steps"
