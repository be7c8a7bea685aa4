"""A rank's own parent: it starts the rank, dies with the launcher, takes the rank with it, and says how the rank ended.

It imports nothing heavy, so it is there before the rank's imports can fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from benches import rankenv

BOARD_BYTES = 32768
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGINT)


class Board:
    """What the rank last said of itself, in memory that it shares with its agent: it outlives a SIGKILL."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, BOARD_BYTES)

    def write(self, **entries: Any) -> None:
        """Add to what stands there. Texts are cut so that all fits."""
        cut = {name: value[:1500] if isinstance(value, str) else value for name, value in entries.items()}
        data = json.dumps({**self.read(), **cut}).encode()
        self._memory[: len(data) + 1] = data + b"\0"

    def read(self) -> dict[str, Any]:
        """All entries; empty before the first `write`."""
        text = self._memory[:].split(b"\0", 1)[0]
        return dict(json.loads(text)) if text else {}


def supervise(work: Callable[[Board], int], out: Path) -> int:
    """Run `work` in a child process, wait for it, note its end in `out/exits/rank<k>.json`; return its exit status."""
    die_with_parent()
    board, agent = Board(), os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent()
        if os.getppid() != agent:
            os._exit(1)
        os._exit(work(board))
    _forward_signals(child)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    _note_end(code, board.read(), out)
    return code if code >= 0 else 128 - code


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _forward_signals(child: int) -> None:
    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    # Asks for stacks: the rank gets its own.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _note_end(code: int, said: dict[str, Any], out: Path) -> None:
    name = signal.Signals(-code).name if code < 0 else None
    entry = {
        "rank": rankenv.rank(),
        "exit_code": code if code >= 0 else None,
        "signal": name,
        "phase": said.get("phase"),
    }
    folder = out / "exits"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{entry['rank']}.json"
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({**entry, "phase": said.get("phase"), "error": said.get("error")}))
    temporary.replace(path)
