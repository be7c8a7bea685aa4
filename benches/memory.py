"""A rank's memory: malloc set alike for all, and the peak since it was last forgotten, in 2**20 bytes.

The peak is of resident memory on the CPU, of allocated memory on CUDA. The parity gate holds a second model and every
rank's gradients; without forgetting, its peak would hide the step's own.

glibc's malloc takes a block from the kernel, zeroed page by page, if it is larger than any mapped one that was freed
before (mallopt(3), "dynamic mmap threshold"), and gives freed memory back by twice that size. So what was freed once,
by the gate or by DDP's first buckets, would decide on the speed of all later steps: ResNet-18 with two pictures of
224x224 took 7 % longer on a CPU with 9,000 page faults a step than with none.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch

PROC = Path("/proc/self")
MMAP, TRIM = "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"
"""The variables by which a user sets malloc's thresholds."""
NUMBERS = {MMAP: -3, TRIM: -1}
"""By which mallopt knows them."""
LARGEST_MMAP = 32 * 2**20
"""Bytes: the most that glibc takes on 64 bits."""
NEVER, SOON = 2**31 - 1, 4 * 2**20
"""Bytes that lie free at the end of an arena before they are given back."""


def steady_malloc(*, give_back: bool = False) -> None:
    """Fix malloc's thresholds, so that they do not follow what is freed. One whose variable is set is left alone.

    What is freed is kept, or with `give_back` goes back to the kernel as it is freed: `forget_peak` cannot fetch it
    later from the arenas of other threads, of which malloc_trim leaves the end. Horovod's kept 45 MiB of the gate.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        return
    for variable, value in ((MMAP, LARGEST_MMAP), (TRIM, SOON if give_back else NEVER)):
        if variable not in os.environ:
            mallopt(NUMBERS[variable], value)


def forget_peak(device: torch.device) -> bool:
    """Give back what is free and count the peak anew from what is held. False where this host cannot do that."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)
    try:
        # 5 resets the peak of resident memory (proc(5)); some kernels and sandboxes leave the file out.
        (PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory_mb(device: torch.device) -> float:
    """The peak since this process began, or since it was forgotten."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    # Not ru_maxrss, which counts what this process was before its exec and cannot be reset.
    found = re.search(r"^VmHWM:\s+(\d+) kB", (PROC / "status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Its function; another C library may have none, whose malloc then does as it does."""
    return getattr(ctypes.CDLL(None), name, None)
