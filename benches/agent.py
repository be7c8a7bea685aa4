"""A rank's own parent: it starts the rank, stops and continues it and its children for the driver, dies with the
launcher and takes the rank with it, and says how the rank ended.

It imports nothing heavy, so it is there before the rank's imports can fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from benches import rankenv
from benches.control import CONTROL, LEASE_S, join
from benches.link import Lines, Link
from launchers.kin import die_with_parent, wake_on_child
from launchers.processes import below, send

FORWARDED = (signal.SIGTERM, signal.SIGINT)


def supervise(work: Callable[[Link], int], out: Path) -> int:
    """Run `work` in a child process, wait for it, note its end in `out/exits/rank<k>.json`; return its exit status."""
    die_with_parent()
    wake = wake_on_child()
    ours, its = socket.socketpair()
    supervised, agent = (out / CONTROL).exists(), os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent()
        if os.getppid() != agent:
            os._exit(1)
        ours.close()
        _be_ordinary()
        os._exit(work(Link(its, supervised)))
    its.close()
    return Agent(child, Lines(ours), out, wake).run()


class Agent:
    """Passes texts between rank and driver, and watches both."""

    def __init__(self, child: int, rank: Lines, out: Path, wake: int) -> None:
        self.child, self.rank, self.out, self.wake = child, rank, out, wake
        self.parked: list[int] = []
        """What is stopped beside the rank."""
        self.said: dict[str, Any] = {}
        self.driver: Connection | None = None
        self.heard = time.monotonic()
        _forward_signals(child)

    def run(self) -> int:
        """Until the rank has ended; its exit status."""
        self._join()
        while (code := self._reap()) is None:
            self._look()
        self._listen_to_rank()
        _note_end(code, self.said, self.out)
        return code if code >= 0 else 128 - code

    def _join(self) -> None:
        try:
            self.driver = join(self.out, rankenv.rank())
        except (OSError, EOFError, ValueError, AuthenticationError) as error:
            self._give_up(f"the driver of this launch does not answer: {error}")

    def _look(self) -> None:
        """Sleep until somebody speaks, the rank changes, or the lease is over."""
        sources: list[Any] = [self.wake, *([self.rank] if self.rank.fileno() >= 0 else [])]
        if self.driver is None:
            ready, _, _ = select.select(sources, [], [])
        else:
            lease_s = self.heard + LEASE_S - time.monotonic()
            ready, _, _ = select.select([*sources, self.driver], [], [], max(lease_s, 0))
            if not ready and lease_s <= 0:
                self._give_up(f"the driver had been silent for {LEASE_S:g} s")
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.rank in ready:
            self._listen_to_rank()
        if self.driver is not None and self.driver in ready:
            self._listen_to_driver()

    def _listen_to_rank(self) -> None:
        """Take in all that the rank has said, and hand it on."""
        while self.rank.fileno() >= 0:
            said = self.rank.read()
            if said is None:
                self.rank.end.close()
            if not said:
                return
            for one in said:
                self.said |= one
                self._tell(one)

    def _listen_to_driver(self) -> None:
        assert self.driver is not None
        try:
            text = self.driver.recv_bytes()
        except (EOFError, OSError):
            self._give_up("the driver is gone")
            return
        self.heard = time.monotonic()
        order = json.loads(text)
        if order["order"] == "stop":
            self._park()
        elif order["order"] != "ping":
            send([self.child, *self.parked], signal.SIGCONT)
            self.parked = []
            with contextlib.suppress(OSError):
                self.rank.write(text)

    def _park(self) -> None:
        """Stop the rank, then all below it: the processes of a data loader would read ahead in the others' turns."""
        # First itself, so that it starts no more of them.
        send([self.child], signal.SIGSTOP)
        self.parked = below(self.child)
        send(self.parked, signal.SIGSTOP)

    def _tell(self, said: dict[str, Any]) -> None:
        if self.driver is not None:
            with contextlib.suppress(OSError):
                self.driver.send_bytes(json.dumps(said).encode())

    def _reap(self) -> int | None:
        """Exit status of the rank (negative: a signal), None while it lives; that it was stopped is told."""
        pid, status = os.waitpid(self.child, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            self._tell({"stopped": True})
            return None
        return os.waitstatus_to_exitcode(status)

    def _give_up(self, why: str) -> None:
        """Kill the rank, since nobody is there any more who would let it go on."""
        send([self.child, *self.parked], signal.SIGKILL)
        if self.driver is not None:
            self.driver.close()
            self.driver = None
        self.said.setdefault("error", why)
        # Standard error may be a pipe that nobody reads any more.
        with contextlib.suppress(OSError):
            print(f"ringduel: {why}; rank {rankenv.rank()} is killed", file=sys.stderr, flush=True)


def _be_ordinary() -> None:
    """In the child: signals as in a fresh process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _forward_signals(child: int) -> None:
    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
            # One that is stopped takes no notice until it goes on.
            os.kill(child, signal.SIGCONT)

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
        "error": said.get("error"),
        "at": said.get("failed_at", time.time()),
    }
    folder = out / "exits"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{entry['rank']}.json"
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(entry))
    temporary.replace(path)
