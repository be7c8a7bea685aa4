"""Start one command on each node, each given as one word that a shell would split, and end them together.

Standard library alone: `python -S -I …/launchers/fanout.py WORD…`. The exit status is that of the first that failed;
then the others are ended. Each has a pipe as its standard input, which closes when this process dies, however it does:
a guard at the far end of an ssh sees that (`launchers.remote`).
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL; a guard on another host takes up to 3 s."""
LOOK_S = 0.02


def main(lines: Sequence[str]) -> int:
    """Run all to their end; 0, or the status of the first that failed (128 + n where signal n ended it)."""
    signal.signal(signal.SIGTERM, _stop)
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += [subprocess.Popen(shlex.split(line), stdin=subprocess.PIPE) for line in lines]
        return _wait(running)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 127
    finally:
        _end(running)


def _wait(running: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [process.poll() for process in running]
        if failed := next((code for code in codes if code), 0):
            return failed if failed > 0 else 128 - failed
        if None not in codes:
            return 0
        time.sleep(LOOK_S)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.poll() is None:
            assert process.stdin is not None
            process.stdin.close()
            process.terminate()
    deadline = time.monotonic() + GRACE_S
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0))
        process.kill()


def _stop(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
