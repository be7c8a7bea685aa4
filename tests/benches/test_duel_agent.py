"""An agent between its rank and a driver: it stops and continues the rank, and leaves it stopped for nobody."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benches.control import CONTROL, Control

CODE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from benches import agent

agent.LEASE_S = float(sys.argv[2])

def work(link):
    link.say(phase="warmup", pid=os.getpid(), supervised=link.supervised)
    {body}
    return 0

sys.exit(agent.supervise(work, Path(sys.argv[1])))
"""
OBEY = """
    while (order := link.order())["order"] != "finish":
        link.say(did=order["block"])
"""
HANG = "time.sleep(60)"
END_S = 10.0


class Supervised:
    """One agent with its rank, and the driver that it knows."""

    def __init__(self, out: Path, body: str, lease_s: float = 60.0) -> None:
        self.out = out
        self.said: dict[str, Any] = {}
        self.heard: list[dict[str, Any]] = []
        self.ended = False
        self.driver = contextlib.ExitStack()
        self.control = self.driver.enter_context(Control())
        self.control.invite(out, "name")
        with (out / "stderr").open("w") as stream:
            self.agent = subprocess.Popen(
                [sys.executable, "-c", CODE.format(body=body.strip()), str(out), str(lease_s)],
                env={**os.environ, "RANK": "1"},
                stderr=stream,
            )
        self.until(lambda: "pid" in self.said)
        self.rank = psutil.Process(self.said["pid"])

    def until(self, condition: Callable[[], object], limit_s: float = 20) -> None:
        """Listen until it holds."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"said {self.heard}; {(self.out / 'stderr').read_text()}"
            for event in self.control.wait([], 0.05):
                assert (event.launch, event.rank) == ("name", 1)
                self.ended = event.said is None
                self.heard += [event.said] if event.said else []
                self.said |= event.said or {}

    def order(self, name: str, **details: Any) -> None:
        self.said.pop("stopped", None)
        self.control.send("name", 1, {"order": name, **details})

    def stop(self) -> None:
        self.order("stop")
        self.until(lambda: self.said.get("stopped"))
        assert self.rank.status() == psutil.STATUS_STOPPED

    def run(self, block: int) -> None:
        self.order("block", block=block)
        self.until(lambda: self.said.get("did") == block)

    def noted(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "exits" / "rank1.json").read_text()))

    def end(self) -> None:
        with contextlib.suppress(psutil.Error):
            self.rank.kill()
        self.agent.kill()
        self.agent.wait(END_S)
        self.driver.close()


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Supervised] = []

    def begin(body: str, lease_s: float = 60.0) -> Supervised:
        made.append(Supervised(tmp_path, body, lease_s))
        return made[-1]

    yield begin
    for one in made:
        one.end()


def gone(process: psutil.Process, limit_s: float = END_S) -> bool:
    """Whether it ends in time; a zombie that awaits its parent counts."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_rank_stops_and_goes_on_by_order(start: Start) -> None:
    one = start(OBEY)
    for block in range(20):
        one.stop()
        one.run(block)
        assert one.rank.status() != psutil.STATUS_STOPPED
    one.stop()
    one.order("finish")
    assert one.agent.wait(END_S) == 0
    one.until(lambda: one.ended)
    assert [said["did"] for said in one.heard if "did" in said] == list(range(20))
    assert one.noted()["exit_code"] == 0


def test_what_a_rank_has_started_stops_and_goes_on_with_it(start: Start) -> None:
    one = start(f'subprocess.Popen(["sh", "-c", "sleep 30; :"]); link.say(ready=True)\n{OBEY}')
    one.until(lambda: one.said.get("ready") and len(one.rank.children(recursive=True)) == 2)
    family = one.rank.children(recursive=True)
    try:
        for block in range(3):
            one.stop()
            one.until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in family))
            one.run(block)
            one.until(lambda: all(process.status() == psutil.STATUS_SLEEPING for process in family))
    finally:
        for process in family:
            process.kill()


def test_a_stopped_rank_uses_no_cpu(start: Start) -> None:
    one = start("while True: pass")
    one.stop()
    before = sum(one.rank.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(one.rank.cpu_times()[:2]) == before


def test_an_order_right_behind_a_stop_is_obeyed(start: Start) -> None:
    one = start(OBEY)
    for block in range(30):
        one.order("stop")
        one.run(block)
    assert one.rank.status() != psutil.STATUS_STOPPED


def test_a_rank_knows_whether_a_driver_leads_it(start: Start, tmp_path: Path) -> None:
    one = start(OBEY)
    assert one.said["supervised"] is True
    (tmp_path / "alone").mkdir()
    code = CODE.format(body="return 7 if link.supervised else 5")
    alone = subprocess.run([sys.executable, "-c", code, str(tmp_path / "alone"), "1"], timeout=30, check=False)
    assert alone.returncode == 5


@pytest.mark.parametrize("stopped", [False, True])
def test_a_driver_that_dies_takes_the_rank_along(start: Start, stopped: bool) -> None:
    one = start(HANG)
    if stopped:
        one.stop()
    one.driver.close()
    assert gone(one.rank)
    assert one.agent.wait(END_S) == 128 + signal.SIGKILL
    entry = one.noted()
    assert (entry["signal"], entry["error"], entry["phase"]) == ("SIGKILL", "the driver is gone", "warmup")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_driver_that_falls_silent_loses_the_rank(start: Start, stopped: bool) -> None:
    one = start(HANG, lease_s=1.0)
    if stopped:
        one.stop()
    assert gone(one.rank)
    assert one.agent.wait(END_S) == 128 + signal.SIGKILL
    why = "the driver had been silent for 1 s"
    assert one.noted()["error"] == why
    assert (one.out / "stderr").read_text() == f"ringduel: {why}; rank 1 is killed\n", "said once"


def test_signs_of_life_renew_the_lease(start: Start) -> None:
    one = start(OBEY, lease_s=1.5)
    one.stop()
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        one.control.ping()
        time.sleep(0.2)
    one.run(0)


def test_a_driver_that_does_not_answer_leaves_no_rank(tmp_path: Path) -> None:
    with Control() as control:
        control.invite(tmp_path, "name")
    code = CODE.format(body=HANG)
    agent = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "60"], env={**os.environ, "RANK": "1"}, timeout=30, check=False
    )
    assert agent.returncode == 128 + signal.SIGKILL
    entry = json.loads((tmp_path / "exits" / "rank1.json").read_text())
    assert entry["error"].startswith("the driver of this launch does not answer: ")


def test_one_with_a_wrong_secret_leaves_no_rank(tmp_path: Path) -> None:
    with Control() as control:
        control.invite(tmp_path, "name")
        entry = json.loads((tmp_path / CONTROL).read_text())
        (tmp_path / CONTROL).write_text(json.dumps({**entry, "secret": "00" * 32}))
        argv = [sys.executable, "-c", CODE.format(body=HANG), str(tmp_path), "60"]
        assert subprocess.run(argv, timeout=30, check=False).returncode == 128 + signal.SIGKILL


def test_a_killed_agent_takes_its_stopped_rank_along(start: Start) -> None:
    one = start(HANG)
    one.stop()
    one.agent.kill()
    assert gone(one.rank)
    one.until(lambda: one.ended)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_a_stopped_rank(start: Start, number: signal.Signals) -> None:
    one = start(f"signal.signal(signal.SIGINT, signal.SIG_DFL); link.say(ready=True); {HANG}")
    one.until(lambda: one.said.get("ready"))
    one.stop()
    one.agent.send_signal(number)
    assert one.agent.wait(END_S) == 128 + number
    assert one.noted()["signal"] == number.name


def test_a_rank_killed_while_it_is_stopped_is_noted(start: Start) -> None:
    one = start(HANG)
    one.stop()
    one.rank.kill()
    assert one.agent.wait(END_S) == 128 + signal.SIGKILL
    one.until(lambda: one.ended)
    entry = one.noted()
    assert (entry["signal"], entry["phase"], entry["error"]) == ("SIGKILL", "warmup", None)


def test_what_was_said_before_a_kill_is_noted_and_told(start: Start) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    one = start(f"link.order(); link.say(phase='timing', block=7); link.say(error='first'); {kill}")
    one.order("block", block=0)
    assert one.agent.wait(END_S) == 128 + signal.SIGKILL
    one.until(lambda: one.ended)
    assert (one.said["phase"], one.said["block"], one.said["error"]) == ("timing", 7, "first")
    entry = one.noted()
    assert (entry["phase"], entry["error"], entry["signal"]) == ("timing", "first", "SIGKILL")


def test_many_texts_arrive_whole_and_in_order(start: Start) -> None:
    one = start("[link.say(number=number, text='é' * 1400) for number in range(1000)]")
    one.until(lambda: one.ended)
    assert [said["number"] for said in one.heard if "number" in said] == list(range(1000))
    assert one.agent.wait(END_S) == 0
