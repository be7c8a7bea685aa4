"""Energy that the hardware of a rank counts: its GPU's (NVML) or, on the CPU, its host's processor packages' (RAPL).

No counter, no number: nothing is estimated from a rated power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from benches.nvml import Gpu, gpu_of

POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows RAPL, Intel's and AMD's alike. Only root may read its counters."""
MICRO, MILLI = 1e-6, 1e-3


@dataclass(frozen=True)
class Counter:
    """One counter of energy."""

    read: Callable[[], int]
    unit_j: float
    """Joules of one count."""
    most: int | None = None
    """Largest count, behind which it starts again at 0; None: it does not."""

    def joules(self, start: int, end: int) -> float:
        """Between two counts, of which less than one turn lies apart."""
        turn = 0 if self.most is None or end >= start else self.most + 1
        return (end - start + turn) * self.unit_j


class Energy:
    """What the counters have counted since this was made."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters = counters
        self._start = [counter.read() for counter in counters]

    def joules(self) -> float | None:
        """None where there is no counter."""
        if not self._counters:
            return None
        pairs = zip(self._counters, self._start, strict=True)
        return sum(counter.joules(start, counter.read()) for counter, start in pairs)


@cache
def counters(device: torch.device) -> tuple[Counter, ...]:
    """Those of a rank on this device; empty where the hardware, the driver or the system keeps them to itself."""
    gpu = gpu_of(device)
    return of_gpu(gpu) if gpu else of_packages(POWERCAP)


def of_packages(powercap: Path) -> tuple[Counter, ...]:
    """One a processor package: the zones `intel-rapl:<package>`. Their parts, `intel-rapl:0:1`, are counted in them."""
    found = []
    for zone in sorted(powercap.glob("intel-rapl:*")):
        if zone.name.count(":") > 1 or not (zone / "name").read_text().startswith("package"):
            continue
        try:
            most = int((zone / "max_energy_range_uj").read_text())
            counter = Counter(partial(_number, zone / "energy_uj"), MICRO, most)
            counter.read()
        except (OSError, ValueError):
            return ()
        found.append(counter)
    return tuple(found)


def of_gpu(gpu: Gpu) -> tuple[Counter, ...]:
    """The GPU, where it counts."""
    if gpu.millijoules() is None:
        return ()
    return (Counter(lambda: gpu.millijoules() or 0, MILLI),)


def _number(path: Path) -> int:
    return int(path.read_text())
