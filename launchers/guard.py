"""The parent of one launch: it starts the launcher, adopts what that orphans, and ends all of it.

A process of its own, so that a driver killed with -9 leaves nothing, and a busy one delays no kill. It imports the
standard library only: `python -S -E -m launchers.guard SOCKET TOKEN FOLDER WORD…`. Its exit status is the launcher's.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import sys
import time
from typing import NoReturn

from launchers.kin import adopt_orphans, die_with_parent, wake_on_child
from launchers.processes import TOKEN, members, send

TERMINATE, KILL = b"T", b"K"
"""What the driver may say. The end of its socket means TERMINATE: there is no driver any more."""

GRACE_S = 3.0
"""Between SIGTERM and SIGKILL."""
TIDY_S = 1.0
"""Then the launcher alone is spared for a while: seeing its ranks gone, it takes away its files and semaphores."""
STUCK_S = 1.5
"""How long to send SIGKILL to a process that does not go; the kernel holds it then."""
LOOK_S = 0.05
"""Between two looks at what is left."""


def main(arguments: list[str]) -> NoReturn:
    """Guard one launch and exit as its launcher did."""
    descriptor, token, folder, *words = arguments
    os.set_inheritable(int(descriptor), False)
    _exit_like(Guard(int(descriptor), token).run(folder, words))


class Guard:
    """Waits for the launcher's end or the driver's word, then ends all that is left."""

    def __init__(self, driver: int, token: str) -> None:
        self.token = token
        self.driver: int | None = driver
        self.code: int | None = None
        self.kill_at = math.inf
        """When SIGKILL is due; infinite while the launch runs."""
        adopt_orphans()
        self.wake = wake_on_child()

    def run(self, folder: str, words: list[str]) -> int:
        """Start the launcher and return its exit status (negative: a signal) when no process of the launch is left."""
        self.launcher = _start(folder, words, self.token)
        clear = 0
        # A process in the middle of fork or exec can be missed once.
        while clear < 2:
            self._reap()
            if self.code is not None:
                self._end_by(time.monotonic() + GRACE_S)
            if self.kill_at == math.inf:
                self._listen(None)
                continue
            left = members(self.token, os.getpid())
            late_s = time.monotonic() - self.kill_at
            if late_s >= 0:
                send([pid for pid in left if late_s >= TIDY_S or pid != self.launcher], signal.SIGKILL)
            if late_s >= TIDY_S + STUCK_S:
                break
            clear = clear + 1 if self.code is not None and not left else 0
            self._listen(LOOK_S if left else LOOK_S / 10)
        return self.code if self.code is not None else -signal.SIGKILL

    def _end_by(self, kill_at: float) -> None:
        """Ask all that is left to end, once; what is still there at `kill_at` is killed."""
        if self.kill_at == math.inf:
            left = members(self.token, os.getpid())
            send(left, signal.SIGTERM)
            # A stopped process takes no notice of SIGTERM until it goes on.
            send(left, signal.SIGCONT)
        self.kill_at = min(self.kill_at, kill_at)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.launcher:
                    self.code = os.waitstatus_to_exitcode(status)

    def _listen(self, timeout: float | None) -> None:
        """Sleep until a child ends, the driver speaks, or the time is up."""
        sources = [self.wake] if self.driver is None else [self.wake, self.driver]
        ready, _, _ = select.select(sources, [], [], timeout)
        if self.wake in ready:
            os.read(self.wake, 4096)
        if self.driver is None or self.driver not in ready:
            return
        try:
            said = os.read(self.driver, 16)
        except ConnectionError:
            said = b""
        if not said:
            self.driver = None
        if TERMINATE in said or not said:
            self._end_by(time.monotonic() + GRACE_S)
        if KILL in said:
            self._end_by(time.monotonic() - TIDY_S)


def _start(folder: str, words: list[str], token: str) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        if os.getppid() != guard:
            os._exit(1)
        os.setsid()
        # Python ignores these, and what is ignored stays so over an exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.chdir(folder)
        os.environ[TOKEN] = token
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{error.filename or words[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(127)


def _exit_like(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
