"""This host's CPU by name; without torch, so that the driver starts fast."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """The model name that Linux gives, else the machine's architecture."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
