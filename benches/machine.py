"""What the configuration must know of this machine: cores that it may use, and visible GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benches.errors import UserError
from launchers.supervise import last_line, output

PROBE_LIMIT_S = 120.0
# Device files without which torch can see no GPU: NVIDIA's driver, the same under WSL, AMD's.
DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
COUNT = "import torch; print('gpus', torch.cuda.device_count() if torch.cuda.is_available() else 0)"


@cache
def visible_gpus(python: str | None) -> int:
    """GPUs that torch of this interpreter (null: ours) sees. Raises UserError where it cannot be asked."""
    if not any(Path(name).exists() for name in DEVICE_FILES):
        return 0
    code, text = output([python or sys.executable, "-c", COUNT], limit_s=PROBE_LIMIT_S)
    counts = [line.split()[1] for line in text.splitlines() if line.startswith("gpus ")]
    if code != 0 or not counts:
        raise UserError(
            f"python={python or sys.executable}: cannot ask its torch for GPUs: {last_line(text)}; or take device=cpu"
        )
    return int(counts[0])


@dataclass(frozen=True)
class Machine:
    """This host, or a pretended one."""

    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """CPUs that this process may run on."""
    gpus: Callable[[str | None], int] = visible_gpus
    """Visible GPUs, asked only where the answer matters; the argument is the interpreter of the ranks."""
