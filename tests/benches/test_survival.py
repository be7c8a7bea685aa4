"""Ranks that fail in every way at every point, and drivers that are interrupted: the right record, and nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from running import HERE, MIXED, launch_case, make_case

from benches import record
from launchers.processes import members

CELLS = [("ddp", "gloo"), ("horovod", "gloo"), ("horovod", "mpi")]
# Call of forward at which the fault strikes; 0 is the building of the model. Call 1 is the gate's, 2 to 11 warm up.
POINTS = {"setup": 0, "warmup": 5, "timing": 14}
FAULTS = {
    "raise": "ValueError: a planted fault in {phase}",
    "exit": "rank 1: exited with status 3 in {phase}",
    "kill": "rank 1: killed by SIGKILL in {phase}",
}
# `make test` takes each fault, moment and cell once; the rest are proofs.
COMBINATIONS = [
    pytest.param(f, p, CELLS[(i + j) % 3], marks=[pytest.mark.proof] if i != j else [])
    for i, f in enumerate(FAULTS)
    for j, p in enumerate(POINTS)
]
END_S = 10.0
"""Nothing may be left so long after the cause."""


def faulty(fault: str, call: int) -> dict[str, Any]:
    return {**MIXED, "name": "faulty", "factory": "zoo:Faulty", "kwargs": {"fault": fault, "call": call}}


@pytest.mark.horovod
@pytest.mark.parametrize(("fault", "phase", "cell"), COMBINATIONS)
def test_a_rank_fails(
    fault: str,
    phase: str,
    cell: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokens: list[str],
) -> None:
    case = make_case(*cell, 2, model=faulty(fault, POINTS[phase]))
    header, _ = launch_case(case, tmp_path, monkeypatch)
    assert header.status == "failed"
    assert str(header.reason).startswith("rank 1: ")
    assert str(header.reason).endswith(FAULTS[fault].format(phase=phase))
    assert fault != "raise" or any("ValueError: a planted fault" in line for line in header.log_tail)
    assert not any(members(token) for token in tokens)


@pytest.mark.horovod
@pytest.mark.parametrize(("phase", "cell"), list(zip(POINTS, CELLS, strict=True)))
def test_a_rank_hangs(
    phase: str, cell: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> None:
    limit_s = 40.0
    case = make_case(*cell, 2, model=faulty("hang", POINTS[phase]), limit_s=limit_s)
    header, out = launch_case(case, tmp_path, monkeypatch)
    assert header.status == "timeout"
    assert f"not done within its limit of {limit_s:g} s" in str(header.reason)
    assert header.duration_s < limit_s + END_S
    assert "zoo.py" in (out / "logs" / "rank1.log").read_text(), "the hanging rank's stack is in its log"
    assert not any(members(token) for token in tokens)


class Driver:
    """`ringduel run` in a process of its own, marked so that all that it starts can be found."""

    alive: ClassVar[list[subprocess.Popen[bytes]]] = []
    """Of the test that runs."""

    def __init__(self, results: Path, *words: str) -> None:
        self.mark = uuid.uuid4().hex
        self.results = results
        self.log = results / "driver.log"
        results.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "benches", "run", f"results={results}", "allow_oversubscribe=true", *words]
        typed = {word.partition("=")[0] for word in words}
        model = {f"model.{key}": value for key, value in MIXED.items() if key != "name"}
        own = [f"{key}={value}" for key, value in model.items() if key not in typed]
        if not any(key.startswith("study.contestants.") for key in typed):
            own.append("engine=ddp")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*argv, "transport=gloo", "device=cpu", "cluster.ranks_per_node=2", "model=custom", *own],
                env={**environment, "RINGDUEL_TEST": self.mark, "PYTHONPATH": str(HERE.parent)},
                cwd=HERE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A shell has its background jobs ignore it, and so would all below.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        self.alive.append(self.process)

    def wait_for(self, phase: str, limit_s: float = 120) -> None:
        """Until rank 0 says that it has come to this phase."""
        self._until(lambda: self._runs() and phase in self.phases(), limit_s, f"rank 0 never came to {phase}")

    def left(self) -> list[psutil.Process]:
        """Living processes of this driver's, itself excepted."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("RINGDUEL_TEST") == self.mark
                if marked and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stopped(self) -> list[psutil.Process]:
        """Ranks that are parked."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [process for process in self.left() if process.status() == psutil.STATUS_STOPPED]
        return []

    def wait_for_parked(self, ranks: int, limit_s: float = 120) -> None:
        """Until so many ranks are stopped at once, all launches being in their blocks."""

        def parked() -> bool:
            return self._runs() and set(self.phases()) == {"timing"} and len(self.stopped()) >= ranks

        self._until(parked, limit_s, f"{ranks} ranks were never parked")

    def ends_clean(self) -> int:
        """Wait for the end of the driver and of all that it started; return its status."""
        status = self.process.wait(END_S)
        self._until(lambda: not self.left(), END_S, f"left: {self.left()}")
        return status

    def headers(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.results.glob(f"*/launches/*/*/{record.HEADER}")]

    def phases(self) -> list[str]:
        """Where rank 0 of each launch is, or was last."""
        files = self.results.glob("*/launches/*/*/progress.json")
        return [json.loads(path.read_text())["phase"] for path in files]

    def _runs(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return True

    def _until(self, condition: Callable[[], bool], limit_s: float, failure: str) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"{failure}\n{self.log.read_text()}"
            time.sleep(0.05)


@pytest.fixture(autouse=True)
def no_driver_is_left() -> Iterator[None]:
    """Also where a test failed: what a driver started ends with it."""
    yield
    while Driver.alive:
        process = Driver.alive.pop()
        process.kill()
        process.wait()


HOLD = {
    "setup": ["model.factory=zoo:Faulty", "model.kwargs={fault: hang, call: 0}"],
    "warmup": ["warmup_steps=1000000"],
    "timing": ["block_steps=1000000"],
}
"""Words that keep a study in this phase."""
SIGNALS = {"ctrl-c": [signal.SIGINT], "ctrl-c twice": [signal.SIGINT, signal.SIGINT], "sigterm": [signal.SIGTERM]}


@pytest.mark.parametrize(
    ("how", "phase"),
    [
        pytest.param(how, phase, marks=[pytest.mark.proof] if i != j else [])
        for i, how in enumerate(SIGNALS)
        for j, phase in enumerate(HOLD)
    ],
)
def test_the_driver_is_interrupted(how: str, phase: str, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "results", *HOLD[phase])
    driver.wait_for(phase)
    for number in SIGNALS[how]:
        driver.process.send_signal(number)
        time.sleep(0.1)
    assert driver.ends_clean() == 130
    (header,) = driver.headers()
    assert header["status"] == "interrupted"
    assert header["reason"] == f"interrupted by {signal.Signals(SIGNALS[how][0]).name}"
    assert "Traceback" not in driver.log.read_text()


def test_a_killed_driver_leaves_nothing(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "results", *HOLD["timing"])
    driver.wait_for("timing")
    driver.process.kill()
    assert driver.ends_clean() == -signal.SIGKILL


DUEL = [
    "~study.contestants.horovod",
    "study.contestants.ddp={engine: ddp, ddp: {bucket_cap_mb: [1, 2]}}",
    "study.control=false",
    "study.rounds=100000",
    "block_steps=50",
]


def test_a_driver_killed_while_launches_are_parked_leaves_nothing(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "results", *DUEL)
    driver.wait_for_parked(2)
    driver.process.kill()
    assert driver.ends_clean() == -signal.SIGKILL
    assert driver.headers() == []
    assert driver.phases() == ["timing"] * 2


def test_a_duel_is_interrupted(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "results", *DUEL)
    driver.wait_for_parked(2)
    driver.process.send_signal(signal.SIGINT)
    assert driver.ends_clean() == 130
    assert [header["reason"] for header in driver.headers()] == ["interrupted by SIGINT"] * 2
    assert not list((tmp_path / "results").glob("*/launches/*/*/control.json"))
    assert "Traceback" not in driver.log.read_text()


def test_two_studies_at_once(tmp_path: Path) -> None:
    short = ["study.launches=1", "study.rounds=1", "block_steps=2"]
    drivers = [Driver(tmp_path / name, f"study.name={name}", *short) for name in ("one", "two")]
    assert [driver.process.wait(200) for driver in drivers] == [0, 0]
    logs = [driver.log.read_text() for driver in drivers]
    assert any("is running on this machine; each disturbs the other" in log for log in logs)


def test_threads_of_the_shell_do_not_reach_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    header, _ = launch_case(make_case("ddp", "gloo", 2), tmp_path, monkeypatch)
    assert [rank["threads"] for rank in header.provenance["ranks"]] == [1, 1]
    assert {rank["environment"]["OMP_NUM_THREADS"] for rank in header.provenance["ranks"]} == {"1"}
