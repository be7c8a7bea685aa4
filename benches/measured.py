"""`beyond.json` of a study: what `make beyond` measured of DDP and Horovod beside the speed of a step.

Each row is a sentence for each engine and where it comes from; nothing in it was typed in by hand.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from benches.spec import Frozen

BEYOND = "beyond.json"


class Finding(Frozen, frozen=True, kw_only=True):
    """One topic."""

    topic: str
    """With its unit."""
    ddp: str
    """Empty: nothing was found."""
    horovod: str
    source: str
    """What was run or read."""


class Beyond(Frozen, frozen=True, kw_only=True):
    """The file."""

    measured_at: str
    """UTC, ISO 8601."""
    machine: str
    """CPU and cores."""
    findings: tuple[Finding, ...]


def read(folder: Path) -> Beyond | None:
    """Of a study's folder; None where there is none. Raises OSError or ValueError for one that cannot be read."""
    path = folder / BEYOND
    return msgspec.json.decode(path.read_bytes(), type=Beyond) if path.exists() else None


def write(folder: Path, found: Beyond) -> Path:
    """Raises FileExistsError where there is one."""
    path = folder / BEYOND
    with path.open("xb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return path
