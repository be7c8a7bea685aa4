"""The Record of a launch: `record.json` (header) and `samples.parquet` (raw seconds), written atomically.

It knows no mean, efficiency or plot. A launch that failed writes the same record, with status, reason and log tail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benches.spec import Case

SCHEMA_VERSION = 1
HEADER = "record.json"
SAMPLES = "samples.parquet"
CURVE = "curve.parquet"
DRAFT = "untraced.json"
"""A header that lacks only what comes last and may break the ranks: the trace of an engine's messages."""

Status = Literal["ok", "failed", "timeout", "interrupted"]

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


class ParityCheck(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One comparison of the parity gate."""

    name: str
    """learning_rate, initial_weights, zero_grad, reduction, projection, local, buffers, weights, samples."""
    passed: bool
    error: float
    """Largest error seen, in the units of `bound`."""
    bound: float
    """Largest error allowed."""
    where: str = ""
    """Parameter or buffer of the largest error, and the rank; `all ranks alike` where all were delivered the same."""


class Parity(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Outcome of the gate before the clock; `error` and `bound` are those of the reduction, null where it was brief."""

    passed: bool
    error: float | None = None
    bound: float | None = None
    took_s: float | None = None
    """Wall seconds of the gate on rank 0; null in records of older versions."""
    checks: list[ParityCheck] = []


class Load(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a rank's host did during one of its blocks. Seconds of CPU time, all cores of the host together."""

    wall_s: float
    """Length of the block, with its untimed steps and barriers."""
    busy_s: float
    """All processes, steal included."""
    steal_s: float
    """Taken by other guests of the same machine."""
    own_s: float
    """This rank's process."""
    mhz: float | None = None
    """Mean clock of the host's cores at the end of the block; null where the host does not say."""
    energy_j: float | None = None
    """Joules of this rank's GPU in that time, or on the CPU of its host's processor packages; null: nothing counts."""


class Block(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One timed block of the launch, in its study."""

    place: int
    """Its place in its round, from 0."""
    parked_s: float
    """Seconds for which the ranks had been stopped before it; 0 where they had not."""


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`record.json`."""

    schema_version: int = SCHEMA_VERSION
    """Version of this layout."""
    case_id: str
    """Hash of `case`."""
    case: Case
    """What ran, in full."""
    launch: int
    """Number of this launch of the case, from 0."""
    status: Status
    """ok; failed: a rank or the launcher ended with an error; timeout: `limit_s` ran out; interrupted: by a signal."""
    reason: str | None = None
    """What ended the launch, in one line; null when ok."""
    log_tail: list[str] = []
    """Last lines of the log of the rank that failed first; empty when ok."""
    command: str
    """The line that started the ranks, as a shell takes it."""
    started_at: str
    """UTC, ISO 8601."""
    duration_s: float
    """Wall time of the whole launch as its writer saw it, start-up included."""
    setup_s: float | None = None
    """Seconds from the start of rank 0 to its first warm-up step: imports, joining, weights, parity."""
    world_size: int
    """Ranks that the engine counted; 0 when none joined."""
    device: str = ""
    """Name of the accelerator or the CPU of rank 0."""
    clock: Literal["perf_counter", "cuda_event"] = "perf_counter"
    """What timed the steps."""
    warmup_steps: int = 0
    """Untimed steps that were run; the case gives the least."""
    samples_per_step: int = 0
    """Units of throughput in one step of the whole job."""
    samples_per_epoch: int | None = None
    """Units of throughput in the data set; null: synthetic batches have none."""
    gradient_bytes: int = 0
    """Bytes of all gradients of one rank."""
    parameters: int = 0
    """Trainable parameters."""
    peak_memory_mb: list[float] = []
    """Peak resident memory (CPU) or allocated device memory (CUDA) of each rank in warm-up and blocks, 2**20 bytes."""
    parity: Parity | None = None
    """null: the launch ended before the gate."""
    effective: dict[str, Any] = {}
    """Settings read back from the engine, with the sizes of DDP's buckets in bytes."""
    provenance: dict[str, Any] = {}
    """Versions, build of Horovod, hosts, git state, allowed environment, affinity, polling: see results/README.md."""
    warnings: list[str] = []
    """Doubts of the launch itself."""
    blocks: list[Block] = []
    """Of each timed block, by its number."""
    load: list[list[Load]] = []
    """By rank, of each timed block."""
    beside: list[str] = []
    """Keys of the contestants that were alive together with this one."""
    losses: list[float | None] | None = None
    """Loss of rank 0 at each traced step, where a trace was asked for (`--losses N`); else null. An entry is null
    where the loss was not finite."""


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
