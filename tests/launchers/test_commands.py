"""Command text of each launcher, line by line, and what a shell makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launchers import direct, horovodrun, mpirun, torchrun
from launchers.spec import Command, LaunchSpec, Mpi, MpiFlavour

HOSTILE = ("--path", "a b", "it's", '"$(touch x)"', "`id`", "new\nline", "", "a;b&c|d", "\\", "*", "~", "é", "!x", "#y")
PYTHON = "/my env/bin/python"


def spec(**changes: object) -> LaunchSpec:
    content: dict[str, object] = {
        "python": PYTHON,
        "args": ("-m", "benches.worker", "it's a case.yaml"),
        "nodes": 1,
        "ranks_per_node": 2,
        "cwd": "/home/x y",
        "env": {"OMP_NUM_THREADS": "1", "B": "$(id) 'q'\n"},
    }
    return LaunchSpec(**{**content, **changes})  # type: ignore[arg-type]


def shown(command: Command) -> list[str]:
    """Words of the command, one a line as a reader would group them; variables and folder are checked here."""
    assert command.env == spec().env
    assert command.cwd == "/home/x y"
    return list(command.argv)


def test_direct() -> None:
    assert shown(direct.command(spec(ranks_per_node=1))) == [PYTHON, "-m", "benches.worker", "it's a case.yaml"]


def test_torchrun() -> None:
    assert shown(torchrun.command(spec())) == [
        *(PYTHON, "-m", "torch.distributed.run"),
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=2",
        "--max-restarts=0",
        "--monitor-interval=0.5",
        "--no-python",
        *(PYTHON, "-m", "benches.worker", "it's a case.yaml"),
    ]


def test_horovodrun() -> None:
    assert shown(horovodrun.command(spec(), ("/my env/bin/horovodrun",))) == [
        "/my env/bin/horovodrun",
        "--gloo",
        "--disable-cache",
        *("-np", "2"),
        *("env", "-u", "NCCL_SOCKET_IFNAME"),
        *(PYTHON, "-m", "benches.worker", "it's a case.yaml"),
    ]


def test_horovodrun_gives_back_what_it_would_replace() -> None:
    env = {"NCCL_SOCKET_IFNAME": "eth0", "PYTHONUNBUFFERED": "", "A": "1"}
    words = horovodrun.command(spec(env=env), ("horovodrun",)).argv
    assert words[5:9] == ("env", "NCCL_SOCKET_IFNAME=eth0", "PYTHONUNBUFFERED=", PYTHON)


@pytest.mark.parametrize(
    ("flavour", "version", "as_root", "flags"),
    [
        (
            "openmpi4",
            "4.1.8",
            True,
            "--allow-run-as-root -np 2 --host localhost:2 --bind-to none --map-by slot --oversubscribe "
            "--mca mpi_yield_when_idle 1 -x B -x OMP_NUM_THREADS",
        ),
        (
            "openmpi5",
            "5.0.11",
            False,
            "-np 2 --host localhost:2 --bind-to none --map-by slot:OVERSUBSCRIBE "
            "--mca mpi_yield_when_idle 1 -x B -x OMP_NUM_THREADS",
        ),
        ("mpich", "5.0.2", True, "-np 2 -rmk user -launcher fork -hosts localhost -bind-to none -genvall"),
    ],
)
def test_mpirun(flavour: MpiFlavour, version: str, as_root: bool, flags: str) -> None:
    mpi = Mpi("/my env/bin/mpirun", flavour, version)
    command = mpirun.command(spec(yield_when_idle=True, as_root=as_root), mpi)
    assert shown(command) == ["/my env/bin/mpirun", *flags.split(), PYTHON, "-m", "benches.worker", "it's a case.yaml"]


def test_polling_is_said_both_ways_to_open_mpi_and_left_to_mpich() -> None:
    busy, polite = spec(yield_when_idle=False), spec(yield_when_idle=True)
    open_mpi, mpich = Mpi("mpirun", "openmpi5", "5.0.11"), Mpi("mpirun", "mpich", "5.0.2")
    words = mpirun.command(busy, open_mpi).argv
    assert words[words.index("mpi_yield_when_idle") + 1] == "0"
    assert mpirun.command(busy, mpich) == mpirun.command(polite, mpich)


def test_text_is_one_line_of_folder_variables_and_words() -> None:
    assert direct.command(spec(ranks_per_node=1)).text() == (
        "(cd '/home/x y' && B='$(id) '\"'\"'q'\"'\"'\n' OMP_NUM_THREADS=1 "
        "'/my env/bin/python' -m benches.worker 'it'\"'\"'s a case.yaml')"
    )


def test_text_survives_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "it's $(here)\n"
    folder.mkdir()
    show = "import json,os,sys; print(json.dumps([sys.argv[1:], os.environ['HOSTILE'], os.getcwd()]))"
    value = "\n".join(HOSTILE)
    command = Command((sys.executable, "-c", show, *HOSTILE), {"HOSTILE": value, "EMPTY": ""}, str(folder))
    done = subprocess.run(["sh", "-c", command.text()], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout) == [list(HOSTILE), value, str(folder)]
    assert list(folder.iterdir()) == []
