"""`samples.parquet` reduced to one row a block and to percentiles of its steps, batch by batch.

A block that is not whole, or holds a time that cannot be, is left out and named; of a launch whose clock ran backwards
no block counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

COLUMNS = ["kind", "rank", "block", "step", "start_s", "seconds"]
PERCENTILES = (50, 95, 99)
LEAST_STEPS = {50: 1, 95: 20, 99: 100}
"""Steps of a rank below which none is expected to lie beyond the percentile: the largest stands in for it then, and no
number of such launches makes that right."""
MOST_FAULTS = 20
"""Blocks of a launch that are left out by name."""
CLOCK_S = 1e-3
"""So much earlier than the end of the block before may a block begin: on CUDA device and host time a block together."""


class Block(NamedTuple):
    """One sound block of a launch."""

    block: int
    steps: int
    """Timed steps of the block."""
    wall_s: float
    """Seconds on the slowest rank."""


class Reduced(NamedTuple):
    """What one launch's samples come to."""

    blocks: list[Block]
    """By number."""
    percentiles: dict[str, float]
    """`p50_s`, `p95_s`, `p99_s` of the steps in those blocks, as far as there are LEAST_STEPS; see `_percentiles`."""
    problems: list[str]


def reduce_samples(path: Path, world_size: int) -> Reduced:
    """Blocks of one launch, percentiles of its steps, and what was wrong with it.

    Raises OSError or pyarrow.ArrowInvalid (truncated, no Parquet, other columns).
    """
    walls, last_steps = [pa.schema(_BLOCK).empty_table()], [pa.schema(_LAST).empty_table()]
    timed: list[pa.Table] = [pa.schema(_WALL).empty_table()]
    bad_steps = other = 0
    with pq.ParquetFile(path) as file:
        _check_columns(file.schema_arrow)
        for batch in file.iter_batches(columns=COLUMNS):
            kind = batch.column("kind").cast(pa.string())
            steps = pa.Table.from_batches([batch.filter(pc.equal(kind, "step"))])
            bad_steps += _count_bad(steps)
            timed.append(steps.select([name for name, _ in _WALL]).cast(pa.schema(_WALL)))
            last_steps.append(steps.group_by("block").aggregate([("step", "max")]).cast(pa.schema(_LAST)))
            blocks = pa.Table.from_batches([batch.filter(pc.equal(kind, "block"))])
            walls.append(blocks.select([name for name, _ in _BLOCK]).cast(pa.schema(_BLOCK)))
            other += len(batch) - len(steps) - len(blocks) - (pc.sum(pc.equal(kind, "warmup")).as_py() or 0)
    problems = [f"{bad_steps} steps have a negative time or none"] if bad_steps else []
    problems += [f"{other} rows are neither warmup, step nor block"] if other else []
    if fault := _clock_fault(pa.concat_tables(walls)):
        return Reduced([], {}, [*problems, fault])
    blocks = _whole_blocks(pa.concat_tables(walls), _steps(pa.concat_tables(last_steps)), world_size, problems)
    return Reduced(blocks, _percentiles(pa.concat_tables(timed), blocks), problems)


def _percentiles(steps: pa.Table, blocks: list[Block]) -> dict[str, float]:
    """Percentiles of each rank's steps, then the largest over the ranks.

    Not of per-step maxima: ranks cut the same time at different moments, so the largest of each step counts the jitter
    of the cuts as if it took time, and would lift the median too.
    """
    rank, block, seconds = (steps[name].to_numpy() for name, _ in _WALL)
    sound = np.isin(block, [one.block for one in blocks]) & np.isfinite(seconds) & (seconds >= 0)
    rank, seconds = rank[sound], seconds[sound]
    _, counts = np.unique(rank, return_counts=True)
    ordered = seconds[np.argsort(rank, kind="stable")]
    if len(set(counts.tolist())) == 1:  # all ranks at once: there may be thousands
        found = [np.percentile(ordered.reshape(len(counts), -1), PERCENTILES, axis=1).max(axis=1)]
    else:
        found = [np.percentile(own, PERCENTILES) for own in np.split(ordered, np.cumsum(counts)[:-1]) if len(own)]
    worst = np.max(found, axis=0).tolist() if found else []
    fewest = int(counts.min()) if len(counts) else 0
    known = [(percent, value) for percent, value in zip(PERCENTILES, worst, strict=False)]
    return {f"p{percent}_s": value for percent, value in known if fewest >= LEAST_STEPS[percent]}


_WALL = [("rank", pa.int64()), ("block", pa.int64()), ("seconds", pa.float64())]
_BLOCK = [*_WALL, ("start_s", pa.float64())]
_LAST = [("block", pa.int64()), ("step_max", pa.int64())]


def _check_columns(schema: pa.Schema) -> None:
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise pa.ArrowInvalid(f"no column {', '.join(missing)}")


def _count_bad(steps: pa.Table) -> int:
    seconds = np.asarray(steps["seconds"].to_numpy(), dtype=float)
    return int(np.sum(~np.isfinite(seconds) | (seconds < 0)))


def _steps(last: pa.Table) -> dict[int, int]:
    """Timed steps of each block."""
    longest = last.group_by("block").aggregate([("step_max", "max")])
    pairs = zip(longest["block"].to_pylist(), longest["step_max_max"].to_pylist(), strict=True)
    return {block: step + 1 for block, step in pairs}


def _clock_fault(walls: pa.Table) -> str | None:
    """Where a rank's block begins before the one before it has ended."""
    rank, block, seconds, start = (walls[name].to_numpy() for name, _ in _BLOCK)
    order = np.lexsort((block, rank))
    rank, block, end, start = rank[order], block[order], (start + seconds)[order], start[order]
    after = (rank[1:] == rank[:-1]) & (block[1:] != block[:-1]) & np.isfinite(end[:-1])
    back = np.flatnonzero(after & (start[1:] < end[:-1] - CLOCK_S))
    if not len(back):
        return None
    first = back[0] + 1
    return f"the clock of rank {rank[first]} ran backwards before block {block[first]}: no block of the launch counts"


def _whole_blocks(walls: pa.Table, steps: dict[int, int], world_size: int, problems: list[str]) -> list[Block]:
    """The sound blocks; `problems` receives a line for each other one."""
    rank, block, seconds = (walls[name].to_numpy() for name, _ in _WALL)
    order = np.argsort(block, kind="stable")
    numbers, first = np.unique(block[order], return_index=True)
    kept: list[Block] = []
    faults: list[str] = []
    # No row at all splits into one part.
    for number, own in zip(numbers.tolist(), np.split(order, first[1:]), strict=False):
        fault = _fault(rank[own], seconds[own], steps.get(number, 0), world_size)
        if fault:
            faults.append(f"block {number} left out: {fault}")
        else:
            kept.append(Block(number, steps[number], float(seconds[own].max())))
    more = len(faults) - MOST_FAULTS
    problems += [*faults[:MOST_FAULTS], *([f"{more} more blocks left out"] if more > 0 else [])]
    return kept


def _fault(rank: NDArray[np.int64], seconds: NDArray[np.float64], steps: int, world_size: int) -> str | None:
    ranks = len(np.unique(rank))
    if ranks != world_size or len(rank) != world_size:
        return f"{len(rank)} times from {ranks} of {world_size} ranks"
    bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(bad):
        return f"the time of rank {rank[bad[0]]} is {seconds[bad[0]]:g} s"
    return None if steps > 0 else "it has no steps"
