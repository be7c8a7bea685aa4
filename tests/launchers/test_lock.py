"""The advisory lock: who runs beside us on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launchers.lock import Holder, machine_lock

HOLD = """
import sys
from launchers.lock import machine_lock
with machine_lock(sys.argv[1]) as others:
    print(sorted(holder.study for holder in others), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own, so that no study outside it is seen."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"ringduel-{os.getuid()}"


def hold(study: str) -> tuple[subprocess.Popen[str], str]:
    """Another process that holds the lock, and the names that it sees."""
    words = [sys.executable, "-c", HOLD, study]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, process.stdout.readline().strip()


def test_alone(private: Path) -> None:
    with machine_lock("one") as others:
        assert others == []
        assert len(list(private.iterdir())) == 1
    assert list(private.iterdir()) == []


def test_each_sees_the_others_until_they_end() -> None:
    first, seen = hold("first")
    assert seen == "[]"
    second, seen = hold("second")
    assert seen == "['first']"
    with machine_lock("third") as others:
        assert set(others) == {Holder(first.pid, "first"), Holder(second.pid, "second")}
    first.communicate(timeout=30)
    with machine_lock("third") as others:
        assert others == [Holder(second.pid, "second")]
    second.communicate(timeout=30)


def test_one_that_was_killed_is_forgotten(private: Path) -> None:
    process, _ = hold("killed")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert len(list(private.iterdir())) == 1
    with machine_lock("next") as others:
        assert others == []
    assert list(private.iterdir()) == []


def test_without_a_folder_it_sees_none(private: Path) -> None:
    private.write_text("a file in its place")
    with machine_lock("one") as others:
        assert others == []


def test_without_a_runtime_folder_it_takes_the_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such/folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with machine_lock("one"):
        assert len(list(tmp_path.glob("ringduel-*/*.json"))) == 1
