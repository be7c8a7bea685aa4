"""What `ringduel plan` prints runs as it stands when it is pasted into a shell, and may be read in part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benches import record

LIMIT_S = 240
WORDS = ["model=mlp", "device=cpu", "cluster.ranks_per_node=2", "allow_oversubscribe=true", "block_steps=2"]
WORDS += ["study.control=false", "study.contestants={mpi: {engine: horovod, transport: mpi}}"]


def environment() -> dict[str, str]:
    """The shell's, without what a launch above this test may have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_", "PMI"))}


def planned(results: Path) -> list[dict[str, Any]]:
    argv = [sys.executable, "-m", "benches", "plan", "--json", *WORDS, f"results={json.dumps(str(results))}"]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["cases"])


@pytest.mark.horovod
def test_pasted_into_a_shell_each_writes_its_record(tmp_path: Path) -> None:
    results = tmp_path / "it's $(a) folder"
    cases = planned(results)
    assert {case["launcher"] for case in cases} == {"torchrun", "horovodrun", "mpirun"}
    for case in cases:
        shell = ["sh", "-c", case["command"]]
        done = subprocess.run(shell, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr
        header = record.read(results / "study.plan" / "launches" / case["case"] / "0")
        assert (header.status, header.world_size, header.case.cell) == ("ok", 2, case["cell"])


@pytest.mark.parametrize("say", ["print('x')", "print('x' * 100_000)", "output.Terminal().print('x')"])
def test_a_reader_that_has_gone_is_no_failure(say: str) -> None:
    plan = f"from benches import cli, output; cli.plan = lambda *_: {say} or 0"
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-c", f"import sys; {plan}; sys.exit(cli.main(['plan']))"]
    # Where Python keeps nothing back, nothing is left for the exit.
    shell = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        done = subprocess.run(argv, env=shell, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
