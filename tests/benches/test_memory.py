"""The peak of memory can be forgotten, and malloc does not depend on what was freed before."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benches import memory

MIB = 2**20
CPU = torch.device("cpu")
# In a process of its own, whose peak nothing else has raised; many small tensors, which malloc keeps when freed.
SCRIPT = f"""
import torch
from benches.memory import forget_peak, peak_memory_mb
cpu = torch.device("cpu")
held = [torch.ones({MIB} // 16) for _ in range(1200)]
high = peak_memory_mb(cpu)
del held
assert forget_peak(cpu)
low = peak_memory_mb(cpu)
again = torch.ones(100 * {MIB} // 4)
print(high - low, peak_memory_mb(cpu) - low)
"""


def printed(script: str, *arguments: str, **environment: str) -> str:
    """What a process of its own prints, in which malloc is as it comes but for `environment`."""
    shell = {name: value for name, value in os.environ.items() if name not in memory.NUMBERS}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=Path(memory.__file__).parent.parent,
        env={**shell, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forgotten_peak_is_gone_and_a_new_one_counts() -> None:
    dropped, grown = map(float, printed(SCRIPT).split())
    assert dropped > 250
    assert 95 < grown < 110


def test_a_host_that_cannot_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path / "none")
    assert not memory.forget_peak(CPU)


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc has no such thresholds")
# Steps that hold blocks of 8 MiB for a while.
STEPS = """
import os, resource, sys
import torch
from benches.memory import steady_malloc
if sys.argv[1] == "steady":
    steady_malloc()
def step():
    held = [torch.ones(2**21) for _ in range(4)]
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * os.sysconf("SC_PAGE_SIZE") // 10)
"""


def faulted_a_step(mode: str, **environment: str) -> int:
    """Bytes that a step had the kernel map anew."""
    return int(printed(STEPS, mode, **environment))


@glibc
def test_memory_that_was_freed_is_kept_for_the_next_step_whatever_was_freed_before() -> None:
    # A threshold below the blocks, for that of a process that has freed none as large.
    low = f"glibc.malloc.mmap_threshold={MIB}"
    assert faulted_a_step("as it comes", GLIBC_TUNABLES=low) > 20 * MIB
    assert faulted_a_step("steady", GLIBC_TUNABLES=low) < MIB


@glibc
def test_thresholds_of_the_users_shell_are_left_alone() -> None:
    assert faulted_a_step("steady", MALLOC_MMAP_THRESHOLD_=str(MIB)) > 20 * MIB


# Blocks of 4 MiB that another thread asked for, as Horovod's does, with nothing behind them in its arena.
ARENA = """
import ctypes, sys, threading
import torch
from benches.memory import forget_peak, peak_memory_mb, steady_malloc
cpu, libc = torch.device("cpu"), ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
steady_malloc(give_back=sys.argv[1] == "give back")
held = []
def fill():
    for _ in range(12):
        held.append(libc.malloc(2**22))
        ctypes.memset(held[-1], 1, 2**22)
thread = threading.Thread(target=fill)
thread.start()
thread.join()
for block in held:
    libc.free(block)
assert forget_peak(cpu)
print(peak_memory_mb(cpu))
"""


@glibc
def test_what_other_threads_held_is_given_back_only_as_it_is_freed() -> None:
    kept, given_back = (float(printed(ARENA, mode)) for mode in ("keep", "give back"))
    assert kept - given_back > 35
