"""The timed loop: warm-up until the engine has settled, then blocks of steps between barriers. Seconds throughout.

On CUDA device events time every engine; on the CPU `perf_counter` does. The two are never mixed.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from benches.engines.base import Engine

MOST_WARMUP_STEPS = 50


class Clock(Protocol):
    """Marks moments cheaply, reads them later."""

    name: str

    def reserve(self, marks: int) -> None:
        """Make room for this many marks, outside the timed part."""

    def mark(self, index: int) -> None:
        """Note the present moment as number `index`."""

    def seconds(self, marks: int) -> list[float]:
        """Moments of the first `marks` marks, in seconds since the first. Waits for the device."""


class HostClock:
    """The host's monotonic clock."""

    name = "perf_counter"

    def reserve(self, marks: int) -> None:
        self._marks = [0.0] * marks

    def mark(self, index: int) -> None:
        self._marks[index] = time.perf_counter()

    def seconds(self, marks: int) -> list[float]:
        return [mark - self._marks[0] for mark in self._marks[:marks]]


class DeviceClock:
    """Events in the current CUDA stream."""

    name = "cuda_event"

    def reserve(self, marks: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(marks)]  # type: ignore[no-untyped-call]

    def mark(self, index: int) -> None:
        self._events[index].record()

    def seconds(self, marks: int) -> list[float]:
        torch.cuda.synchronize()
        return [self._events[0].elapsed_time(event) / 1000 for event in self._events[:marks]]


def make_clock(device: torch.device) -> Clock:
    """The clock that times every engine on this device."""
    return DeviceClock() if device.type == "cuda" else HostClock()


@dataclass
class Samples:
    """Raw seconds of one rank; each list holds one entry a step or block."""

    kind: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    KINDS = ("warmup", "step", "block")

    def add(self, kind: str, block: int, step: int, start_s: float, seconds: float) -> None:
        self.kind.append(self.KINDS.index(kind))
        self.block.append(block)
        self.step.append(step)
        self.start_s.append(start_s)
        self.seconds.append(seconds)

    def tensor(self) -> torch.Tensor:
        """Shape (entries, 5), float64: kind, block, step, start_s, seconds."""
        columns = (self.kind, self.block, self.step, self.start_s, self.seconds)
        return torch.tensor([list(map(float, column)) for column in columns], dtype=torch.float64).T


class Timer:
    """Runs `step(number)` in a warm-up and in blocks, and keeps what each took."""

    def __init__(self, engine: Engine, step: Callable[[int], object], prepare: Callable[[int, int], None]) -> None:
        self.engine, self.step, self.prepare = engine, step, prepare
        self.clock = make_clock(engine.device)
        self.samples = Samples()
        self.next_step = 0
        self._origin = time.perf_counter()

    def warm_up(self, least: int, settled: Callable[[], bool]) -> str | None:
        """Run `least` steps, and more until the engine has settled. Returns a warning when it never does."""
        self._block("warmup", -1, least)
        while not settled():
            if self.next_step >= MOST_WARMUP_STEPS:
                return f"the engine had not settled after {self.next_step} warm-up steps"
            self._block("warmup", -1, 1)
        return None

    def run_block(self, block: int, steps: int, untimed: int = 0) -> float:
        """Time one block, with so many untimed steps just before it, and return its seconds on this rank.

        Those stand behind the barrier, from which ranks return at different times: what a step exchanges brings them
        together as it will between the timed ones.
        """
        return self._block("step", block, steps, untimed)

    def steps_in(self, seconds: float) -> int:
        """Steps that take about so long, by the median of the warm-up on the slowest rank. Collective; the same on all
        ranks."""
        return math.ceil(seconds / slowest(self.engine, statistics.median(self.samples.seconds)))

    def run_untimed(self, steps: int) -> None:
        """Run further steps and keep nothing of them."""
        self.prepare(self.next_step, steps)
        for _ in range(steps):
            self.step(self.next_step)
            self.next_step += 1

    def _block(self, kind: str, block: int, steps: int, untimed: int = 0) -> float:
        self.prepare(self.next_step, untimed + steps)
        self.clock.reserve(steps + 1)
        first = self.next_step + untimed
        with without_collections():
            self._synchronize()
            for step in range(self.next_step, first):
                self.step(step)
            start = time.perf_counter() - self._origin
            self._steps(first, steps)
            moments = self.clock.seconds(steps + 1)
        self.next_step = first + steps
        offset = first if kind == "warmup" else 0
        for index in range(steps):
            took = moments[index + 1] - moments[index]
            self.samples.add(kind, block, offset + index, start + moments[index], took)
        if kind == "step":
            self.samples.add("block", block, -1, start, moments[-1])
        self.engine.barrier()
        return moments[-1]

    def _steps(self, first: int, steps: int) -> None:
        mark, step = self.clock.mark, self.step
        mark(0)
        for index in range(steps):
            step(first + index)
            mark(index + 1)

    def _synchronize(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize()
        self.engine.barrier()


def slowest(engine: Engine, seconds: float) -> float:
    """The largest of the ranks' values, on every rank, so that all decide alike. Collective."""
    return max(float(one) for one in engine.gather(torch.tensor([seconds], dtype=torch.float64, device=engine.device)))


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect now, and not again until the end."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
