"""Processes of a launch, found by its token in their environment and by descent, never by name. Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

TOKEN = "RINGDUEL_LAUNCH"
"""Variable that marks every process of a launch, wherever it has gone: sessions and parents change, this does not."""


class Stat(NamedTuple):
    """What the kernel says of a process."""

    parent: int
    state: str
    started: int
    """Ticks since boot."""


def members(token: str, root: int | None = None) -> list[int]:
    """Living processes that carry `token`, and all that descend from them or from `root`, in order of their start.

    Neither `root` nor the caller is among them.
    """
    table = _table()
    entry = f"{TOKEN}={token}".encode()
    marked = {pid for pid in table if entry in _environment(pid)}
    found = _descend(table, marked if root is None else marked | {root}) - {root, os.getpid()}
    living = [pid for pid in found if pid in table and table[pid].state not in "ZX"]
    return sorted(living, key=lambda pid: (table[pid].started, pid))


def below(root: int) -> list[int]:
    """Processes that descend from `root`, which is not among them."""
    return sorted(_descend(_table(), {root}) - {root})


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal each; those that have gone, or are another user's, are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for this signal (SigCgt of proc(5))."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _table() -> dict[int, Stat]:
    return {pid: stat for pid in _pids() if (stat := stat_of(pid)) is not None}


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def stat_of(pid: int) -> Stat | None:
    """What the kernel says of a process; None where it has gone."""
    # The name, in parentheses, may itself hold spaces and parentheses.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return Stat(int(fields[1]), fields[0].decode(), int(fields[19])) if fields else None


def _environment(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def _read(pid: int, name: str) -> bytes:
    """Empty where the process has gone or is another user's."""
    try:
        # pathlib would take a third of a guard's start, and of a look at thousands of processes.
        with open(f"/proc/{pid}/{name}", "rb") as stream:  # noqa: PTH123
            return stream.read()
    except OSError:
        return b""


def _descend(table: dict[int, Stat], roots: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    found, queue = set(roots), list(roots)
    while queue:
        new = [pid for pid in children.get(queue.pop(), []) if pid not in found]
        found.update(new)
        queue.extend(new)
    return found
