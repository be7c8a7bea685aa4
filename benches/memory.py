"""Peak of a rank's memory since it was last forgotten, in 2**20 bytes: resident on the CPU, allocated on CUDA.

The parity gate holds a second model and every rank's gradients; without forgetting, its peak would hide the step's own.
"""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

import torch

PROC = Path("/proc/self")


def forget_peak(device: torch.device) -> bool:
    """Give back what is free and count the peak anew from what is held. False where this host cannot do that."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    # glibc's; another C library may have none, and then keeps what was freed or does not.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
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
