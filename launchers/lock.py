"""An advisory lock: studies of one user on one machine disturb each other's clocks, and should say so."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """A study that runs."""

    pid: int
    study: str


@contextlib.contextmanager
def machine_lock(study: str) -> Iterator[list[Holder]]:
    """Gives the other studies of this user that run on this machine. It never waits; without a folder it sees none.

    Each study keeps a file of its own locked while it runs. The kernel lets go of the lock however the study ends, so
    a file that is not locked is a leftover, and is removed.
    """
    with contextlib.ExitStack() as stack:
        others: list[Holder] = []
        with contextlib.suppress(OSError):
            folder = _folder()
            # First seen, then looking: of two that start together, each sees the other.
            own = stack.enter_context(_announced(folder, Holder(os.getpid(), study)))
            others = [holder for path in folder.glob("*.json") if path != own and (holder := _holder(path))]
        yield others


def _folder() -> Path:
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if not (base.is_absolute() and os.access(base, os.W_OK)):
        base = Path(tempfile.gettempdir())
    folder = base / f"ringduel-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextlib.contextmanager
def _announced(folder: Path, holder: Holder) -> Iterator[Path]:
    """A locked file that says who runs; it appears under its name only when it is locked and complete."""
    handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
    with os.fdopen(handle, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        json.dump(asdict(holder), stream)
        stream.flush()
        path = Path(name).rename(Path(name).with_suffix(".json"))
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def _holder(path: Path) -> Holder | None:
    with contextlib.suppress(FileNotFoundError), path.open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Holder(**json.load(stream))
        path.unlink(missing_ok=True)
    return None
