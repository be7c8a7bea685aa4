"""The stages of a build as one sees them: a line per stage with the elapsed seconds, CMake's per cent, one log."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from benches.errors import UserError
from benches.install import BuildError
from launchers.spec import Command, without
from launchers.supervise import StopFlag, run

PERCENT = re.compile(rb"^\s*\[\s*(\d+)%\]", re.MULTILINE)
"""How make shows progress under CMake."""

QUIET_S = 30.0
"""Longest silence of a step where the output is no terminal."""

CAUSES = re.compile(
    r"DO NOT MATCH THE HASHES|No space left on device|Killed signal terminated program|CMake Error"
    r"|\berror\s*(#\d+|C\d+)?: |^#error\b|undefined reference to|cannot find -l|multiple definition of"
    r"|^(\w+\.)*\w*(Error|Exception): "
)
"""Lines that name a cause, in the words of pip, the kernel, CMake, GCC, Clang, nvcc, ld and Python."""

HINTS = re.compile(r"^ERROR: |command not found|No such file or directory|Permission denied")
"""Lines that may name one, where no other does."""

NOISE = re.compile(
    r"subprocess-exited-with-error|metadata-generation-failed|failed-wheel-build|Failed (building wheel|to build)"
    r"|CalledProcessError|command .* failed with exit|ld returned \d+ exit status|Configuring incomplete"
    r"|^g?make(\[\d+\])?: \*\*\*"
)
"""Lines that only pass an earlier error on."""


def pip() -> list[str]:
    """The command that runs this environment's pip. Raises UserError where it has none."""
    if find_spec("pip") is None:
        raise UserError(f"pip: not in this environment; put it there with `{sys.executable} -m ensurepip`")
    return [sys.executable, "-m", "pip"]


class Steps:
    """Runs the commands of one build in the folder `work`, all into one log."""

    def __init__(self, work: Path, log: Path, stream: TextIO | None = None, stop: StopFlag | None = None) -> None:
        """`stop` ends the step that runs, and with it the build."""
        self.work = work
        self.log = log
        self.stop = stop
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._line_open = False
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def say(self, text: str) -> None:
        """One line, after the seconds since the start."""
        self._end_line()
        print(f"{self._clock()} {text}", file=self._stream, flush=True)
        self.note(f"# {text}\n")

    def note(self, text: str) -> None:
        """Into the log only."""
        with self.log.open("a") as log:
            log.write(text)

    def run(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], limit_s: float) -> None:
        """Run with exactly `env` to the end, showing progress. Raises BuildError with the first real error."""
        self.say(name)
        self.note(f"$ {shlex.join(argv)}\n")
        start = self.log.stat().st_size
        command = Command((*without(sorted(os.environ.keys() - env.keys())), *argv), env, str(self.work))
        look = self._progress(start)
        token = uuid.uuid4().hex
        outcome = run(command, log=self.log, limit_s=limit_s, token=token, tick=look, stop=self.stop)
        look()
        self._end_line()
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status == "timeout":
            raise BuildError(f"{name}: {outcome.reason}; log: {self.log}")
        if outcome.status != "ok":
            said = self.log.read_bytes()[start:].decode(errors="replace")
            raise BuildError(f"{name}: {first_error(said)}; log: {self.log}")

    def _progress(self, start: int) -> Callable[[], None]:
        """Reads what the log gained; shows its last per cent, and that time passes."""
        position, percent, shown = start, -1, -1
        terminal = self._stream.isatty()
        step, pause_s = (1, 1.0) if terminal else (10, QUIET_S)
        next_sign = time.monotonic() + pause_s

        def look() -> None:
            nonlocal position, percent, shown, next_sign
            with self.log.open("rb") as log:
                log.seek(position)
                text = log.read()
            # A line cut short is left for the next look.
            text = text[: text.rfind(b"\n") + 1]
            position += len(text)
            percent = max((int(number) for number in PERCENT.findall(text)), default=percent)
            if percent // step > shown // step or time.monotonic() >= next_sign:
                shown, next_sign = percent, time.monotonic() + pause_s
                self._sign(percent, terminal)

        return look

    def _sign(self, percent: int, terminal: bool) -> None:
        """On a terminal the line is rewritten; elsewhere each sign of life gets one."""
        self._line_open = terminal
        start, end = ("\r", "") if terminal else ("", "\n")
        text = f"{percent:3d} %" if percent >= 0 else "…"
        print(f"{start}{self._clock()}   {text}", end=end, file=self._stream, flush=True)

    def _end_line(self) -> None:
        if self._line_open:
            print(file=self._stream, flush=True)
        self._line_open = False

    def _clock(self) -> str:
        return f"[{time.monotonic() - self._started:4.0f} s]"


def first_error(output: str) -> str:
    """The first line that names a cause; for CMake with the line after it. Never 'Error 1'."""
    lines = [text for line in output.splitlines() if (text := line.strip()) and not NOISE.search(text)]
    for pattern in (CAUSES, HINTS):
        for index, line in enumerate(lines):
            if pattern.search(line):
                return f"{line} {lines[index + 1]}" if line.startswith("CMake Error") and lines[index + 1 :] else line
    return lines[-1] if lines else "it said nothing"
