"""The peak of memory can be forgotten: what was held and given back before does not count."""

from __future__ import annotations

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


def test_a_forgotten_peak_is_gone_and_a_new_one_counts() -> None:
    root = Path(memory.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    dropped, grown = map(float, done.stdout.split())
    assert dropped > 250
    assert 95 < grown < 110


def test_a_host_that_cannot_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path / "none")
    assert not memory.forget_peak(CPU)
