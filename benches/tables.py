"""What the ranks measured, as the tables of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benches import record
from benches.loop import Samples


def samples(parts: Sequence[torch.Tensor]) -> pa.Table:
    """Samples of all ranks, by rank, in the columns of `samples.parquet`."""
    ranks, rows = _joined(parts)
    kinds = pa.DictionaryArray.from_arrays(record.column(rows[:, 0], pa.int8()), record.names(Samples.KINDS))
    return pa.table([kinds, *_columns(ranks, rows[:, 1:], record.SAMPLE_SCHEMA.types[1:])], schema=record.SAMPLE_SCHEMA)


def curve(parts: Sequence[torch.Tensor]) -> pa.Table:
    """Curves of all ranks, by rank, in the columns of `curve.parquet`."""
    ranks, rows = _joined(parts)
    return pa.table(_columns(ranks, rows, record.CURVE_SCHEMA.types), schema=record.CURVE_SCHEMA)


def _joined(parts: Sequence[torch.Tensor]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Each row's rank, and the rows of all."""
    rows = np.concatenate([part.cpu().numpy() for part in parts])
    return np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts]), rows


def _columns(ranks: NDArray[np.int32], rows: NDArray[np.float64], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """The ranks and the columns of `rows`, as many as there are types."""
    values: list[NDArray[Any]] = [ranks, *(rows[:, place] for place in range(len(types) - 1))]
    return [record.column(*one) for one in zip(values, types, strict=True)]
