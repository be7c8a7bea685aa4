"""The real torchrun, horovodrun and mpirun, each with two ranks that need no torch."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benches import rankenv
from benches.errors import UserError
from launchers import direct, horovodrun, mpirun, torchrun
from launchers.processes import members
from launchers.spec import Command, LaunchSpec
from launchers.supervise import run
from launchers.tools import Tools

RANK = """
import json, os, sys, time, signal
from pathlib import Path
names = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
rank = next((os.environ[name] for name in names if name in os.environ), "0")
said = [sys.argv[2:], os.getcwd(), dict(os.environ)]
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(said))
if "HANG" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
"""
HOSTILE = ("a b", "it's", '"$(id)"', "`id`", "new\nline", "", "a;b,c", "\\", "-x", "--")
LAUNCHERS = ("direct", "torchrun", "horovodrun", "mpirun")
TOOLS = Tools()


@pytest.fixture
def token() -> Iterator[str]:
    token = uuid.uuid4().hex
    yield token
    assert members(token) == []


def command(launcher: str, folder: Path, **env: str) -> Command:
    """Two ranks (one without a launcher) of RANK, in `folder`; skips where the launcher is not there."""
    script = folder / "rank.py"
    script.write_text(RANK)
    spec = LaunchSpec(
        python=sys.executable,
        args=(str(script), str(folder), *HOSTILE),
        nodes=1,
        ranks_per_node=1 if launcher == "direct" else 2,
        cwd=str(folder),
        env={"OMP_NUM_THREADS": "1", **env},
        yield_when_idle=True,
        as_root=os.geteuid() == 0,
    )
    if launcher == "direct":
        return direct.command(spec)
    if launcher == "torchrun":
        return torchrun.command(spec)
    if launcher == "horovodrun":
        if not TOOLS.packages(sys.executable).horovod:
            pytest.skip("Horovod is not installed: ringduel install-horovod")
        return horovodrun.command(spec, TOOLS.horovodrun(sys.executable))
    try:
        return mpirun.command(spec, TOOLS.mpi(sys.executable))
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_get_their_words_variables_and_places(launcher: str, token: str, tmp_path: Path) -> None:
    value = "\n".join(HOSTILE)
    log = tmp_path / "launcher.log"
    outcome = run(command(launcher, tmp_path, HOSTILE=value), log=log, limit_s=120, token=token)
    assert outcome.status == "ok", log.read_text()
    said = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank*.json"))]
    assert len(said) == (1 if launcher == "direct" else 2)
    for rank, (words, folder, env) in enumerate(said):
        assert words == list(HOSTILE)
        assert folder == str(tmp_path)
        assert (env["HOSTILE"], env["OMP_NUM_THREADS"]) == (value, "1")
        assert (rankenv.rank(env), rankenv.local_rank(env)) == (rank, rank)
        check_own_words(launcher, env)


def check_own_words(launcher: str, env: dict[str, Any]) -> None:
    """What one launcher alone has to tell a rank."""
    if launcher == "torchrun":
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert int(env["MASTER_PORT"]) > 0
    if launcher == "horovodrun":
        assert env["HOROVOD_SIZE"] == "2"
        assert "NCCL_SOCKET_IFNAME" not in env
    if launcher == "mpirun" and TOOLS.mpi(sys.executable).flavour != "mpich":
        assert env["OMPI_MCA_mpi_yield_when_idle"] == "1"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nothing_is_left_of_ranks_that_hang(launcher: str, token: str, tmp_path: Path) -> None:
    """They ignore SIGTERM, so that the launcher's own tidying does not do it."""
    ranks = 1 if launcher == "direct" else 2
    up = lambda: f"{ranks} up" if len(list(tmp_path.glob("rank*.json"))) == ranks else None  # noqa: E731
    outcome = run(command(launcher, tmp_path, HANG="1"), log=tmp_path / "log", limit_s=120, token=token, check=up)
    assert (outcome.status, outcome.reason) == ("failed", f"{ranks} up")
    assert outcome.duration_s < 120
