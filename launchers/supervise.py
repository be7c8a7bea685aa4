"""The one module that starts processes: it watches a launch, ends it, and leaves nothing of it behind. Seconds.

Each launch has a guard (`launchers.guard`) as its parent, which does the ending; here it is decided when and why.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

from launchers.guard import GRACE_S, KILL, STUCK_S, TERMINATE, TIDY_S
from launchers.processes import catches, members, send
from launchers.spec import Command

CHECKOUT = Path(__file__).resolve().parent.parent
POLL_S = 0.1
STACKS_S = 0.5
"""Time for ranks that hang to write their stacks, before SIGTERM."""
GUARD_LIMIT_S = GRACE_S + TIDY_S + STUCK_S + 1.0
"""A guard that takes longer to end a launch is itself killed."""


@dataclass(frozen=True)
class Outcome:
    """How a launch ended; by then none of its processes is left."""

    status: Literal["ok", "failed", "timeout", "interrupted"]
    reason: str | None
    """One line; None when ok."""
    exit_code: int
    """The launcher's exit status; negative: the signal that ended it."""
    duration_s: float
    """From the start until nothing was left."""
    launcher_killed: bool = False
    """By a signal that was not ours: whatever else was seen of the launch came of that."""


@dataclass
class StopFlag:
    """Signals that asked the driver to stop, in their order."""

    signals: list[int] = field(default_factory=list)
    since: float = math.inf
    """When the first came, on the monotonic clock."""

    def is_set(self) -> bool:
        return bool(self.signals)

    def is_urgent(self) -> bool:
        """Asked twice: no more grace."""
        return len(self.signals) > 1

    def reason(self) -> str:
        return f"interrupted by {signal.Signals(self.signals[0]).name}"


@contextlib.contextmanager
def interrupts() -> Iterator[StopFlag]:
    """Within it Ctrl-C, SIGTERM and SIGHUP set the flag that it gives, and do nothing else. Main thread only."""
    flag = StopFlag()

    def note(number: int, _frame: FrameType | None) -> None:
        flag.since = min(flag.since, time.monotonic())
        flag.signals.append(number)

    # What is ignored stays ignored: a driver under nohup, or in the background of a script.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def dump_stacks(pids: Sequence[int]) -> None:
    """Send SIGUSR1 to each process that has a handler for it (a rank's faulthandler), other than the launcher.

    Those without one would die of it, and mpirun would hand it on to them. `pids`: the launcher first.
    """
    send([pid for pid in pids[1:] if catches(pid, signal.SIGUSR1)], signal.SIGUSR1)


class Launch:
    """One launch. Several may be alive in one driver, each polled in turn: nothing here waits, except `close`."""

    def __init__(
        self,
        command: Command,
        *,
        log: Path,
        limit_s: float,
        token: str,
        check: Callable[[], str | None] | None = None,
        before_kill: Callable[[Sequence[int]], None] = dump_stacks,
    ) -> None:
        """`log`: where its output goes. `token`: unique, in the environment of all its processes. `check`: says why
        the launch has failed although its launcher is still there; the launcher then has 3 s to end by itself.
        `before_kill`: called with the processes of a launch whose limit is over, the launcher first."""
        self.command = command
        self.log = log
        self.limit_s = limit_s
        self.token = token
        self.check = check or (lambda: None)
        self.before_kill = before_kill
        self.outcome: Outcome | None = None
        self.ended_at = math.inf
        """On the monotonic clock."""
        self.uncounted_s = 0.0
        """Seconds that do not count against the limit."""
        self._cause: tuple[Literal["failed", "timeout", "interrupted"], str] | None = None
        self._terminate_at = 0.0
        self._told: float | None = None

    def start(self) -> None:
        """Start the guard, and through it the launcher."""
        ours, its = socket.socketpair()
        self._socket = ours
        self._started = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        words = (str(its.fileno()), self.token, self.command.cwd or str(Path.cwd()), *self.command.argv)
        with its, self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                # Without site-packages and PYTHON* variables: quick, and deaf to the user's settings.
                [sys.executable, "-S", "-E", "-m", "launchers.guard", *words],
                cwd=CHECKOUT,
                env={**os.environ, **self.command.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    def fileno(self) -> int:
        """Of a socket that is readable once nothing is left of the launch."""
        return self._socket.fileno()

    def poll(self) -> Outcome | None:
        """Look at the launch, end it where that is due, and return its outcome once nothing of it is left."""
        if self.outcome is not None:
            return self.outcome
        code = self._guard.poll()
        now = time.monotonic()
        if code is not None:
            self._finish(code)
        elif self._cause is None:
            self._judge(now)
        elif self._told is None and now >= self._terminate_at:
            self._tell(TERMINATE)
        elif self._told is not None and now >= self._told + GUARD_LIMIT_S:
            self._guard.kill()
        return self.outcome

    def end(self, reason: str, *, at_once: bool = False) -> None:
        """Ask for the end of the launch, as interrupted; `at_once`: with SIGKILL."""
        self._cause = self._cause or ("interrupted", reason)
        if at_once or self._told is None:
            self._tell(KILL if at_once else TERMINATE)

    def close(self) -> None:
        """End what is left of the launch, if anything, at once, and wait for that."""
        while self.poll() is None:
            self.end("given up", at_once=True)
            self.wait(POLL_S)

    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the launch."""
        ready, _, _ = select.select([self], [], [], seconds)
        if ready:
            # The guard has let go of its socket, so it is about to exit.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(seconds)

    def __enter__(self) -> Launch:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _judge(self, now: float) -> None:
        if now >= self._started + self.limit_s + self.uncounted_s:
            self._cause = ("timeout", f"not done within its limit of {self.limit_s:g} s")
            self._terminate_at = now + STACKS_S
            self.before_kill(members(self.token))
        elif reason := self.check():
            self._cause = ("failed", reason)
            self._terminate_at = now + GRACE_S

    def _tell(self, order: bytes) -> None:
        self._told = self._told or time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(order)

    def _finish(self, code: int) -> None:
        stuck = _kill(self.token)
        self._socket.close()
        killed = code < 0 and self._told is None
        cause = None if killed else self._cause
        reason = cause[1] if cause else _describe(code) if killed else self.check() or _describe(code)
        status = cause[0] if cause else "failed" if reason else "ok"
        if stuck:
            status, reason = "failed", f"{reason or 'done'}, but processes {stuck} do not end, not even by SIGKILL"
        self.ended_at = time.monotonic()
        self.outcome = Outcome(status, reason, code, self.ended_at - self._started, killed)


def run(
    command: Command,
    *,
    log: Path,
    limit_s: float,
    token: str,
    check: Callable[[], str | None] | None = None,
    tick: Callable[[], None] | None = None,
    before_kill: Callable[[Sequence[int]], None] = dump_stacks,
    stop: StopFlag | None = None,
) -> Outcome:
    """Run one launch to its end; see `Launch`. `tick` is called about ten times a second. `stop` interrupts it."""
    with Launch(command, log=log, limit_s=limit_s, token=token, check=check, before_kill=before_kill) as launch:
        while (outcome := launch.poll()) is None:
            if stop is not None and stop.is_set():
                launch.end(stop.reason(), at_once=stop.is_urgent())
            if tick is not None:
                tick()
            launch.wait(POLL_S)
        return outcome


def output(argv: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Exit status and output, errors included, of a short command; the status is None when it took over `limit_s`."""
    with tempfile.TemporaryDirectory(prefix="ringduel-") as folder:
        log = Path(folder) / "log"
        outcome = run(Command(tuple(argv)), log=log, limit_s=limit_s, token=uuid.uuid4().hex)
        return (None if outcome.status == "timeout" else outcome.exit_code), log.read_text(errors="replace")


def last_line(text: str, silent: str = "no answer") -> str:
    """What a command said last, which is why it failed; `silent` where it said nothing."""
    return (text.strip().splitlines() or [silent])[-1]


def json_line(text: str) -> dict[str, Any] | None:
    """The last JSON object that a command wrote as one line: warnings, before and behind it, may stand in the same
    output. None where there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                return dict(json.loads(line))
    return None


def _kill(token: str) -> list[int]:
    """Kill what a guard left that was itself killed; return what does not go."""
    deadline = time.monotonic() + STUCK_S
    while left := members(token):
        if time.monotonic() >= deadline:
            break
        send(left, signal.SIGKILL)
        time.sleep(0.02)
    return left


def _describe(code: int) -> str | None:
    if code == 0:
        return None
    if code < 0:
        return f"the launcher was killed by {signal.Signals(-code).name}"
    return f"the launcher ended with status {code}"
