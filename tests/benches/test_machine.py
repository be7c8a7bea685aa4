"""Counting GPUs: torch is asked only where a driver is there to answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benches import machine
from benches.errors import UserError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    machine.visible_gpus.cache_clear()
    yield
    machine.visible_gpus.cache_clear()


def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int | None, text: str) -> list[Any]:
    """Pretend a driver, and an interpreter that says `text`; returns the commands that it got."""
    (tmp_path / "driver").write_text("")
    monkeypatch.setattr(machine, "DEVICE_FILES", (str(tmp_path / "driver"),))
    asked: list[Any] = []
    monkeypatch.setattr(machine, "output", lambda argv, limit_s: asked.append(argv) or (code, text))
    return asked


def test_without_a_driver_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = answering(monkeypatch, tmp_path, 0, "gpus 3\n")
    monkeypatch.setattr(machine, "DEVICE_FILES", (str(tmp_path / "none"),))
    assert machine.visible_gpus(None) == 0
    assert asked == []


def test_torch_of_the_ranks_interpreter_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = answering(monkeypatch, tmp_path, 0, "a warning of torch's\ngpus 3\n")
    assert [machine.visible_gpus("/env/python") for _ in range(2)] == [3, 3]
    assert [argv[0] for argv in asked] == ["/env/python"]


@pytest.mark.parametrize("code", [1, None])
def test_no_answer_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int | None) -> None:
    answering(monkeypatch, tmp_path, code, "Traceback\nModuleNotFoundError: No module named 'torch'\n")
    with pytest.raises(UserError) as caught:
        machine.visible_gpus("/env/python")
    assert str(caught.value) == (
        "python=/env/python: cannot ask its torch for GPUs: ModuleNotFoundError: No module named 'torch'; "
        "or take device=cpu"
    )


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 7})
    assert machine.Machine().cores == 3
