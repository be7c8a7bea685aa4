"""The agent: it notes how its rank ended, forwards signals, and takes the rank with it when it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benches import record
from launchers.supervise import CHECKOUT

CODE = """
import os, signal, sys, time
from pathlib import Path
from benches import agent

def work(link):
    link.say(phase="warmup")
    Path(sys.argv[2], "pid").write_text(str(os.getpid()))
    {body}
    return 0

sys.exit(agent.supervise(work, Path(sys.argv[2])))
"""
HANG = "time.sleep(60)"


def start(tmp_path: Path, body: str) -> subprocess.Popen[bytes]:
    code = CODE.format(body=body)
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.argv.insert(1, ''); exec({code!r})", str(tmp_path)],
        env={**os.environ, "RANK": "1"},
    )


def noted(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((tmp_path / "exits" / "rank1.json").read_text()))


def wait_for(path: Path, limit_s: float = 20) -> str:
    deadline = time.monotonic() + limit_s
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)
    return path.read_text()


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ("pass", 0, {"exit_code": 0, "signal": None}),
        ("return 3", 3, {"exit_code": 3, "signal": None}),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, {"exit_code": None, "signal": "SIGKILL"}),
        ("link.say(error='ValueError: no'); return 1", 1, {"exit_code": 1, "error": "ValueError: no"}),
        ("link.say(error='x' * 9000); return 1", 1, {"exit_code": 1, "error": "x" * 1500}),
    ],
)
def test_the_end_is_noted(tmp_path: Path, body: str, status: int, expected: dict[str, Any]) -> None:
    assert start(tmp_path, body).wait(20) == status
    entry = noted(tmp_path)
    assert entry["rank"] == 1
    assert entry["phase"] == "warmup"
    assert {name: entry[name] for name in expected} == expected


def test_signals_reach_the_rank(tmp_path: Path) -> None:
    process = start(tmp_path, HANG)
    wait_for(tmp_path / "pid")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert noted(tmp_path)["signal"] == "SIGTERM"


def test_a_killed_agent_takes_its_rank_along(tmp_path: Path) -> None:
    process = start(tmp_path, HANG)
    rank = psutil.Process(int(wait_for(tmp_path / "pid")))
    process.kill()
    process.wait(20)
    psutil.wait_procs([rank], timeout=10)
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE


def test_by_hand_a_folder_that_holds_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / record.HEADER).write_text("{}")
    argv = [sys.executable, "-m", "benches.worker", "case.yaml", "--out", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ringduel: --out={tmp_path}: holds the record of a launch; name another folder\n"


def test_the_folder_one_calls_from_shadows_nothing_in_python_3_10(tmp_path: Path) -> None:
    """As there: `-m` puts that folder first, whatever PYTHONSAFEPATH says."""
    (tmp_path / "argparse.py").write_text("raise SystemExit('a shadow')\n")
    code = (
        "import os, runpy, sys; sys.path[0] = os.getcwd(); os.environ['PYTHONSAFEPATH'] = '1'; sys.argv[1:] = ['-h']; "
    )
    code += "runpy.run_module('benches.worker', run_name='__main__')"
    shell = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    shell["PYTHONPATH"] = str(CHECKOUT)
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
