"""What else the host did during a block: CPU seconds of all processes, of other guests, of this one; energy; GPU."""

from __future__ import annotations

import contextlib
import time

import psutil
import torch

from benches.energy import Energy, counters
from benches.header import Load
from benches.nvml import gpu_of


class Meter:
    """Starts when it is made."""

    def __init__(self, device: torch.device, children: bool = False) -> None:
        """children: this process has some, such as a loader's workers, whose time is its own; to find them takes a look
        at all processes of the host."""
        self._gpu, self._children = gpu_of(device), children
        self._energy = Energy(counters(device))
        self._held_s = self._gpu.held_back_s() if self._gpu else None
        self._start = _now(children)

    def read(self) -> Load:
        """What has passed since the start. psutil's times come from /proc, in ticks of 10 ms."""
        now = _now(self._children)
        wall_s, busy_s, steal_s, own_s = (end - start for start, end in zip(self._start, now, strict=True))
        return Load(
            wall_s=wall_s,
            busy_s=busy_s,
            steal_s=steal_s,
            own_s=own_s,
            mhz=_mhz(),
            energy_j=self._energy.joules(),
            gpu_processes=self._gpu.processes() if self._gpu else None,
            gpu_held_back_s=self._held_back_s(),
        )

    def _held_back_s(self) -> float | None:
        held_s = self._gpu.held_back_s() if self._gpu else None
        return None if held_s is None or self._held_s is None else held_s - self._held_s


def _now(children: bool) -> tuple[float, float, float, float]:
    """Wall clock, busy (steal included), steal, own; seconds."""
    host, own = psutil.cpu_times(), psutil.Process()
    steal = getattr(host, "steal", 0.0)
    # Guests' time is counted in user and nice already.
    busy = host.user + host.nice + host.system + getattr(host, "irq", 0.0) + getattr(host, "softirq", 0.0) + steal
    return time.monotonic(), busy, steal, sum(map(_cpu_s, [own, *(own.children() if children else [])]))


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def _mhz() -> float | None:
    frequency = psutil.cpu_freq()
    return frequency.current if frequency and frequency.current else None
