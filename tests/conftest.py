"""Markers and fixtures that all tests share. On CI nothing that a marker asks for may be missing."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest

from launchers.supervise import Launch

BUILD = "Horovod is not here; build it with `ringduel install-horovod`"


def pytest_configure() -> None:
    """Ctrl-C is heard by the tests' processes also where a shell started them in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`horovod`: needs an importable Horovod."""
    if item.get_closest_marker("horovod") and find_spec("horovod") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(BUILD)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tokens of the launches that were started."""
    seen: list[str] = []
    original = Launch.start

    def start(self: Launch) -> None:
        seen.append(self.token)
        original(self)

    monkeypatch.setattr(Launch, "start", start)
    return seen
