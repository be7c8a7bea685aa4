"""What else the host did during a block: CPU seconds of all processes, of other guests, and of this process; energy."""

from __future__ import annotations

import time

import psutil
import torch

from benches.energy import Energy, counters
from benches.header import Load


class Meter:
    """Starts when it is made."""

    def __init__(self, device: torch.device) -> None:
        self._energy = Energy(counters(device))
        self._start = _now()

    def read(self) -> Load:
        """What has passed since the start. psutil's times come from /proc, in ticks of 10 ms."""
        wall_s, busy_s, steal_s, own_s = (end - start for start, end in zip(self._start, _now(), strict=True))
        joules = self._energy.joules()
        return Load(wall_s=wall_s, busy_s=busy_s, steal_s=steal_s, own_s=own_s, mhz=_mhz(), energy_j=joules)


def _now() -> tuple[float, float, float, float]:
    """Wall clock, busy (steal included), steal, own; seconds."""
    host, own = psutil.cpu_times(), psutil.Process().cpu_times()
    steal = getattr(host, "steal", 0.0)
    # Guests' time is counted in user and nice already.
    busy = host.user + host.nice + host.system + getattr(host, "irq", 0.0) + getattr(host, "softirq", 0.0) + steal
    return time.monotonic(), busy, steal, own.user + own.system


def _mhz() -> float | None:
    frequency = psutil.cpu_freq()
    return frequency.current if frequency and frequency.current else None
