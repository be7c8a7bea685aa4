"""The Record of a launch: `record.json` (header) and `samples.parquet` (raw seconds), written atomically.

It knows no mean, efficiency or plot. A launch that failed writes the same record, with status, reason and log tail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benches.header import SCHEMA_VERSION, Block, Header, Load, Parity, ParityCheck, Status

__all__ = [
    "CURVE",
    "CURVE_SCHEMA",
    "DRAFT",
    "HEADER",
    "SAMPLES",
    "SAMPLE_SCHEMA",
    "SCHEMA_VERSION",
    "Block",
    "Header",
    "Load",
    "Parity",
    "ParityCheck",
    "Status",
    "adopt_draft",
    "column",
    "names",
    "read",
    "read_samples",
    "write",
    "write_draft",
]

HEADER = "record.json"
SAMPLES = "samples.parquet"
CURVE = "curve.parquet"
DRAFT = "untraced.json"
"""A header that lacks only what comes last and may break the ranks: the trace of an engine's messages."""

SAMPLE_SCHEMA = pa.schema(
    [
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("rank", pa.int32()),
        ("block", pa.int32()),
        ("step", pa.int32()),
        ("start_s", pa.float64()),
        ("seconds", pa.float64()),
    ]
)
"""kind: warmup, step or block · block: 0…, -1 in the warm-up · step: 0… within its block, -1 for a block ·
start_s: since this rank's first warm-up step, on its monotonic clock · seconds: duration."""


CURVE_SCHEMA = pa.schema(
    [("rank", pa.int32()), ("bytes", pa.int64()), ("iteration", pa.int32()), ("seconds", pa.float64())]
)
"""One all-reduce of a message of `bytes` bytes on one rank; iteration: 0… within its size."""


def column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Numbers as a column of that type. `pyarrow.array` would import pandas, a second of CPU time in every launch."""
    numbers = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def names(texts: Sequence[str]) -> pa.Array:
    """ASCII texts as a column, without pandas too."""
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer("".join(texts).encode("ascii")))


def write(folder: Path, header: Header, samples: pa.Table | None, curve: pa.Table | None = None) -> None:
    """Write samples and curve, then the header: a folder with a header is complete. Refuses to overwrite."""
    _write(folder, header, samples, curve, HEADER)
    (folder / DRAFT).unlink(missing_ok=True)


def write_draft(folder: Path, header: Header, samples: pa.Table | None, curve: pa.Table | None = None) -> None:
    """Write everything as `write` does, but the header as a draft: what was timed stands if the ranks now break."""
    _write(folder, header, samples, curve, DRAFT)


def adopt_draft(folder: Path, warning: str) -> bool:
    """Make a header of the draft, with a warning; whether there was one."""
    if not (folder / DRAFT).exists():
        return False
    header: Header = msgspec.json.decode((folder / DRAFT).read_bytes(), type=Header)
    header.warnings.append(warning)
    write(folder, header, None)
    return True


def _write(folder: Path, header: Header, samples: pa.Table | None, curve: pa.Table | None, name: str) -> None:
    if (folder / HEADER).exists():
        raise FileExistsError(f"{folder / HEADER} exists; records are never overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    for path, table, schema in ((SAMPLES, samples, SAMPLE_SCHEMA), (CURVE, curve, CURVE_SCHEMA)):
        if table is not None:
            _write_table(folder / path, table.cast(schema))
    text = msgspec.json.format(msgspec.json.encode(header), indent=1) + b"\n"
    _replace(folder / name, lambda temporary: temporary.write_bytes(text))


def read(folder: Path) -> Header:
    """Read the header of a launch. Raises FileNotFoundError, or ValueError when it is not a record."""
    return msgspec.json.decode((folder / HEADER).read_bytes(), type=Header)


def read_samples(folder: Path) -> pa.Table:
    """Read the samples of a launch; an empty table where it has none (it failed before its first block)."""
    path = folder / SAMPLES
    return pq.read_table(path) if path.exists() else SAMPLE_SCHEMA.empty_table()


def _write_table(path: Path, table: pa.Table) -> None:
    _replace(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def _replace(path: Path, fill: Callable[[Path], object]) -> None:
    """Fill a temporary file in the same folder, sync it, and rename it over `path`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        fill(temporary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
