"""What the header of a record holds. Ranks import this; pyarrow, which record.py needs, takes 24 MiB of memory."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from benches.spec import Case

SCHEMA_VERSION = 1

Status = Literal["ok", "failed", "timeout", "interrupted"]


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
    """This rank's process and the workers of its loader."""
    mhz: float | None = None
    """Mean clock of the host's cores at the end of the block; null where the host does not say."""
    energy_j: float | None = None
    """Joules of this rank's GPU in that time, or on the CPU of its host's processor packages; null: nothing counts."""
    gpu_processes: int | None = None
    """That compute on this rank's GPU at the end of the block, stopped ones too; null: NVML does not say."""
    gpu_held_back_s: float | None = None
    """Seconds of the block in which power or heat held the GPU's clock down; null: NVML does not say."""


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
