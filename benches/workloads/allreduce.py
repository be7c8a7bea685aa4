"""The all-reduce curve: time of one sum over the ranks against its size, as the engine's own library makes it.

Bytes and seconds. Every size is checked against the exact sum before it is timed.
"""

from __future__ import annotations

import torch

from benches.engines.base import Engine
from benches.loop import make_clock, slowest, without_collections

SMALLEST_BYTES = 4
"""One float32, as in nccl-tests."""
SIZE_S = 0.2
"""Sums of a size are timed until they took so long; the last doubling may exceed it."""
FEWEST, MOST = 5, 640
"""Sums of a size that are timed, however long or short one takes."""
PERIOD = 1021
"""A prime, so that a segment in the wrong place cannot hold the right values."""
CHUNK = PERIOD * 1024
"""Elements that are filled and checked at a time: 4 MiB, whatever the size."""


def sizes(most_mb: float) -> list[int]:
    """Bytes of each message: 4, 8, 16 … up to `most_mb` x 2**20."""
    most = int(most_mb * 2**20)
    return [SMALLEST_BYTES << k for k in range(most.bit_length()) if SMALLEST_BYTES << k <= most]


def measure(engine: Engine, most_mb: float) -> torch.Tensor:
    """Time every size on this rank. Collective; the same rows on every rank but for the seconds.

    Returns shape (sums, 3), float64: bytes, iteration, seconds. Raises RuntimeError where a sum is wrong.
    """
    return torch.cat([_measure_size(engine, count) for count in sizes(most_mb)])


def _measure_size(engine: Engine, size: int) -> torch.Tensor:
    tensor = torch.empty(size // 4, dtype=torch.float32, device=engine.device)
    fill(tensor, engine.rank)
    engine.summing(tensor)()
    check(tensor, engine.rank, engine.world_size)
    # Zeros: sums of sums would overflow within 128 steps, and infinities and denormals take times of their own.
    tensor.zero_()
    seconds = time_sums(engine, tensor, FEWEST)
    while len(seconds) < MOST and slowest(engine, sum(seconds)) < SIZE_S:
        seconds += time_sums(engine, tensor, len(seconds))
    rows = [[float(size), float(index), took] for index, took in enumerate(seconds)]
    return torch.tensor(rows, dtype=torch.float64)


def time_sums(engine: Engine, tensor: torch.Tensor, count: int) -> list[float]:
    """Seconds on this rank of each of `count` sums, one straight after the other. Collective."""
    clock, add = make_clock(engine.device), engine.summing(tensor)
    clock.reserve(count + 1)
    with without_collections():
        # Ranks leave a barrier of another library at different times; a sum brings them together, and data into caches.
        engine.barrier()
        add()
        clock.mark(0)
        for index in range(count):
            add()
            clock.mark(index + 1)
        moments = clock.seconds(count + 1)
    return [moments[index + 1] - moments[index] for index in range(count)]


def fill(tensor: torch.Tensor, rank: int) -> None:
    """Values of one rank: whole numbers so small that float32 adds those of 4000 ranks without rounding."""
    pattern = _pattern(tensor)
    for part in torch.split(tensor, CHUNK):
        torch.add(pattern[: len(part)], rank + 1, out=part)


def check(tensor: torch.Tensor, rank: int, world_size: int) -> None:
    """Raise RuntimeError unless `tensor` holds the sum of what `fill` gives every rank, exactly."""
    expected = _pattern(tensor) * world_size + world_size * (world_size + 1) / 2
    for number, part in enumerate(torch.split(tensor, CHUNK)):
        wanted = expected[: len(part)]
        if not torch.equal(part, wanted):
            place = int((part != wanted).nonzero()[0])
            raise RuntimeError(
                f"all-reduce of {tensor.numel() * 4} bytes: rank {rank} got {float(part[place]):g} "
                f"at element {number * CHUNK + place}, where the sum is {float(wanted[place]):g}"
            )


def _pattern(tensor: torch.Tensor) -> torch.Tensor:
    count = min(tensor.numel(), CHUNK)
    return torch.arange(count, device=tensor.device).remainder_(PERIOD).to(torch.float32)
