"""Daemons of the tests' own, such as sshd and slurmd, in namespaces of this machine: what they need, and their ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from launchers.kin import die_with_parent
from launchers.supervise import CHECKOUT

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Where such programs lie."""
GONE_S = 15.0
LOOK_S = 0.05


def absent(programs: Sequence[str], packages: str) -> str | None:
    """Why there can be no such daemons here; None: nothing. packages: Debian's, which hold the programs."""
    if os.geteuid() != 0:
        return "needs root: network namespaces"
    gone = [name for name in (*programs, "ip", "tc", "unshare") if shutil.which(name, path=PATH) is None]
    return f"no {gone[0]} here; Debian's packages are {packages}, iproute2, util-linux" if gone else None


@contextlib.contextmanager
def daemon(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as the context lasts; it dies with this one too, however that ends."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words,
            env={**os.environ, "PATH": PATH},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(GONE_S)


def run(words: Sequence[str], env: Mapping[str, str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run the words in the checkout, and keep what they write. They too die with this process."""
    return subprocess.run(
        words,
        env=env,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=limit_s,
        preexec_fn=die_with_parent,
    )


def until(condition: Callable[[], bool], limit_s: float, why: Callable[[], str]) -> None:
    """Wait for it. Raises AssertionError with the reason where it does not come."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(LOOK_S)
