"""Signals to a driver, and its sudden death: in all cases no process of the launch is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launchers.processes import members
from launchers.supervise import interrupts

DRIVER = """
import sys
from pathlib import Path
from launchers.spec import Command
from launchers.supervise import interrupts, run
token, log, text = sys.argv[1:]
with interrupts() as stop:
    outcome = run(Command(("sh", "-c", text)), log=Path(log), limit_s=60, token=token, stop=stop)
print(outcome.status, outcome.reason)
"""
POLITE = "sleep 60 & echo up; wait"
STUBBORN = "trap '' TERM INT; setsid sh -c 'while :; do sleep 1; done' & echo up; while :; do sleep 1; done"


@dataclass
class Driver:
    """A driver that runs one launch."""

    log: Path
    process: subprocess.Popen[str] = field(init=False)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, text: str) -> None:
        words = [sys.executable, "-c", DRIVER, self.token, str(self.log), text]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_until(lambda: self.log.exists() and "up" in self.log.read_text(), 30)

    def wait_until(self, true: Callable[[], bool], limit_s: float) -> float:
        started = time.monotonic()
        while not true():
            assert time.monotonic() < started + limit_s
            time.sleep(0.02)
        return time.monotonic() - started

    def end(self) -> tuple[str, str, float]:
        """What it said on stdout and stderr, and how long it took to end."""
        started = time.monotonic()
        out, err = self.process.communicate(timeout=15)
        return out.strip(), err, time.monotonic() - started


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    one = Driver(tmp_path / "log")
    try:
        yield one
        assert members(one.token) == []
    finally:
        one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_launch_cleanly(number: signal.Signals, driver: Driver) -> None:
    driver.start(POLITE)
    driver.process.send_signal(number)
    out, err, took_s = driver.end()
    assert (out, err, driver.process.returncode) == (f"interrupted interrupted by {number.name}", "", 0)
    assert took_s < 10


def test_one_signal_gives_three_seconds_to_what_does_not_listen(driver: Driver) -> None:
    driver.start(STUBBORN)
    driver.process.send_signal(signal.SIGINT)
    out, err, took_s = driver.end()
    assert (out, err) == ("interrupted interrupted by SIGINT", "")
    assert 2.9 < took_s < 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_kills_at_once(number: signal.Signals, driver: Driver) -> None:
    driver.start(STUBBORN)
    driver.process.send_signal(number)
    time.sleep(0.3)
    driver.process.send_signal(number)
    out, err, took_s = driver.end()
    assert (out, err) == (f"interrupted interrupted by {number.name}", "")
    assert took_s < 2


@pytest.mark.parametrize("text", [POLITE, STUBBORN])
def test_a_driver_killed_with_9_leaves_nothing(text: str, driver: Driver) -> None:
    driver.start(text)
    assert len(members(driver.token)) >= 2
    driver.process.kill()
    driver.process.wait()
    assert driver.wait_until(lambda: not members(driver.token), 20) < 10


def test_a_driver_killed_while_it_ends_a_launch_leaves_nothing(driver: Driver) -> None:
    driver.start(STUBBORN)
    driver.process.terminate()
    time.sleep(0.5)
    driver.process.kill()
    driver.process.wait()
    assert driver.wait_until(lambda: not members(driver.token), 20) < 10


def test_handlers_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with interrupts() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        assert not stop.is_urgent()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_urgent()
    assert stop.reason() == "interrupted by SIGTERM"
    assert [signal.getsignal(number) for number in numbers] == before


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
