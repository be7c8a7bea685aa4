"""torchrun, horovodrun and mpirun over several hosts: command text, line by line, and what a far shell makes of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from benches.errors import UserError
from launchers import nodes
from launchers.processes import members
from launchers.remote import CHECKOUT, Ssh, SshNodes, guarded
from launchers.spec import LaunchSpec, Mpi, MpiFlavour

PYTHON = "/my env/bin/python"
TOKEN = "000000ff00"
HOSTILE = ("a b", "it's", '"$(touch x)"', "`id`", "new\nline", "", "a;b&c|d", "\\", "*", "~", "é", "!x", "#y")
RANK = [PYTHON, "-m", "benches.worker", "it's a case.yaml"]


def spec(**changes: object) -> LaunchSpec:
    content: dict[str, object] = {
        "python": PYTHON,
        "args": ("-m", "benches.worker", "it's a case.yaml"),
        "nodes": 2,
        "ranks_per_node": 8,
        "cwd": "/home/x y",
        "env": {"B": "$(id) 'q'\n"},
    }
    return LaunchSpec(**{**content, **changes})  # type: ignore[arg-type]


def site(**changes: object) -> SshNodes:
    return SshNodes(**{"hosts": ("a", "b"), "token": TOKEN, **changes})  # type: ignore[arg-type]


def test_torchrun_has_an_agent_on_each_host() -> None:
    command = nodes.torchrun(spec(), site(nic="ib0"))
    assert command.argv[:4] == (sys.executable, "-S", "-I", str(nodes.FANOUT))
    for node, line in enumerate(command.argv[4:]):
        *ssh, far = shlex.split(line)
        host = "ab"[node]
        assert ssh == ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host]
        _exec, _sh, _c, text = shlex.split(far)
        assert shlex.split(text) == [
            *("cd", str(CHECKOUT), "&&", "exec", "env"),
            *("B=$(id) 'q'\n", "GLOO_SOCKET_IFNAME=ib0", "NCCL_SOCKET_IFNAME=ib0"),
            *(PYTHON, "-S", "-E", "-m", "launchers.guard", "3", f"{TOKEN}-{node}", "/home/x y"),
            *(PYTHON, "-m", "torch.distributed.run"),
            "--nnodes=2",
            "--rdzv-backend=static",
            f"--rdzv-endpoint=a:{20000 + 0xFF}",
            f"--rdzv-id={TOKEN}",
            f"--node-rank={node}",
            f"--local-addr={host}",
            "--nproc-per-node=8",
            "--max-restarts=0",
            "--monitor-interval=0.5",
            "--no-python",
            *RANK,
            *("3<&0", "</dev/null"),
        ]


def test_horovodrun_starts_where_its_unquoted_folder_does_no_harm() -> None:
    ssh = Ssh(port=2222, identity_file="/keys/id")
    command = nodes.horovodrun(spec(), site(nic="ib0", ssh=ssh), ("/my env/bin/horovodrun",))
    assert command.cwd == "/"
    assert list(command.argv) == [
        "/my env/bin/horovodrun",
        "--gloo",
        "--disable-cache",
        *("-np", "16"),
        *("-H", "a:8,b:8"),
        *("--network-interfaces", "ib0"),
        *("--ssh-port", "2222"),
        *("--ssh-identity-file", "/keys/id"),
        *("sh", "-c", 'cd -- "$0" && exec "$@"', "/home/x y"),
        *("env", "NCCL_SOCKET_IFNAME=ib0"),
        *RANK,
    ]


def test_horovodrun_writes_no_secret_into_the_command_for_other_hosts() -> None:
    words = nodes.horovodrun(replace(spec(), hidden=("HF_TOKEN", "my.var")), site(), ("horovodrun",)).argv
    assert words[:6] == ("env", "-u", "HF_TOKEN", "-u", "my.var", "horovodrun")


def test_horovodrun_logs_in_as_told_also_on_one_host() -> None:
    words = nodes.horovodrun(spec(nodes=1), site(ssh=Ssh(port=2222, identity_file="/k")), ("horovodrun",)).argv
    assert words[7:11] == ("--ssh-port", "2222", "--ssh-identity-file", "/k")


def test_horovodrun_on_one_host_leaves_the_device_to_it() -> None:
    words = nodes.horovodrun(spec(nodes=1), site(nic="ib0"), ("horovodrun",)).argv
    assert words[:8] == ("horovodrun", "--gloo", "--disable-cache", "-np", "8", "-H", "a:8", "sh")


@pytest.mark.parametrize(
    ("flavour", "flags"),
    [
        (
            "openmpi4",
            "-np 16 --host a:8,b:8 --bind-to none --map-by slot --oversubscribe --mca plm_rsh_agent ssh "
            "--mca plm_rsh_args OPTIONS --mca oob_tcp_if_include ib0 --mca btl_tcp_if_include ib0 "
            "--mca mpi_yield_when_idle 0 -x B -x GLOO_SOCKET_IFNAME -x NCCL_SOCKET_IFNAME",
        ),
        (
            "openmpi5",
            "-np 16 --host a:8,b:8 --bind-to none --map-by slot:OVERSUBSCRIBE --prtemca plm_ssh_agent ssh "
            "--prtemca plm_ssh_args OPTIONS --prtemca prte_if_include ib0 --mca btl_tcp_if_include ib0 "
            "--mca mpi_yield_when_idle 0 -x B -x GLOO_SOCKET_IFNAME -x NCCL_SOCKET_IFNAME",
        ),
        (
            "mpich",
            "-np 16 -rmk user -launcher ssh -launcher-exec ssh -hosts a:8,b:8 -iface ib0 -bind-to none -genvall",
        ),
    ],
)
def test_mpirun(flavour: MpiFlavour, flags: str) -> None:
    options = "-o BatchMode=yes -o ConnectTimeout=10 -p 2222"
    command = nodes.mpirun(spec(), site(nic="ib0", ssh=Ssh(port=2222)), Mpi("/my env/mpirun", flavour, "0"))
    expected = [options if word == "OPTIONS" else word for word in flags.split()]
    assert list(command.argv) == ["/my env/mpirun", *expected, *RANK]
    assert command.env.get("HYDRA_LAUNCHER_EXTRA_ARGS") == (options if flavour == "mpich" else None)
    assert command.cwd == "/home/x y"


def test_without_a_device_none_is_named() -> None:
    for flavour in ("openmpi4", "openmpi5", "mpich"):
        command = nodes.mpirun(spec(), site(), Mpi("mpirun", flavour, "0"))  # type: ignore[arg-type]
        assert not [word for word in (*command.argv, *command.env) if "if_include" in word or "IFNAME" in word]


def test_the_user_chooses_the_device() -> None:
    chosen = spec(env={"GLOO_SOCKET_IFNAME": "mine"})
    assert nodes.variables(chosen, site(nic="ib0")) == {"GLOO_SOCKET_IFNAME": "mine", "NCCL_SOCKET_IFNAME": "ib0"}


def test_launches_of_one_heat_meet_at_different_ports() -> None:
    ports = [nodes.port(uuid.uuid4().hex) for _ in range(200)]
    assert all(20000 <= port < 30000 for port in ports)
    assert len(set(ports)) > 150


def test_a_key_that_mpirun_cannot_pass_is_refused() -> None:
    with pytest.raises(UserError, match=r"^cluster.identity_file='/my keys/id': "):
        Ssh(identity_file="/my keys/id")


@pytest.fixture
def far(tmp_path: Path) -> Ssh:
    """A stand-in for ssh that does what sshd does: the joined words go to a shell, in another folder."""
    program = tmp_path / "ssh"
    program.write_text('#!/bin/sh\nwhile [ "$1" = -o ]; do shift 2; done\nshift\ncd /\nexec sh -c "$*"\n')
    program.chmod(0o755)
    return Ssh(str(program))


def test_words_arrive_unchanged(far: Ssh, tmp_path: Path) -> None:
    folder = tmp_path / "it's $(here)"
    folder.mkdir()
    show = "import json,os,sys; print(json.dumps([sys.argv[1:], os.environ['HOSTILE'], os.getcwd()]))"
    text = guarded((sys.executable, "-c", show, *HOSTILE), {"HOSTILE": "\n".join(HOSTILE)}, str(folder), "ab")
    # A pipe that stays open, as fanout's: its end would end the command.
    process = subprocess.Popen(far.words("a", text), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.read()) == [list(HOSTILE), "\n".join(HOSTILE), str(folder)]
    assert process.wait(30) == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_broken_connection_ends_what_is_far(far: Ssh, tmp_path: Path, how: signal.Signals) -> None:
    token = uuid.uuid4().hex
    lines = [far.words("a", guarded((sys.executable, "-c", "import time; time.sleep(60)"), {}, "/", token))] * 2
    env = {name: value for name, value in os.environ.items() if name != "RINGDUEL_LAUNCH"}
    fan = subprocess.Popen(nodes.fanout(lines), env=env, start_new_session=True)
    assert eventually(lambda: len(members(token)) == 2)
    fan.send_signal(how)
    fan.wait(30)
    assert eventually(lambda: members(token) == [])


def test_a_host_that_is_done_ends_nothing_on_another_in_the_same_process_table(far: Ssh) -> None:
    on = SshNodes(("a", "b"), uuid.uuid4().hex, far)
    sleep = (sys.executable, "-c", "import sys, time; time.sleep(int(sys.argv[1]))")
    lines = [on.on(node, (*sleep, seconds), {}, "/") for node, seconds in enumerate(("0", "1"))]
    assert subprocess.run(nodes.fanout(lines), timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["true", "true"], 0),
        (["sleep 60", "sh -c 'exit 3'"], 3),
        (["sleep 60", "sh -c 'kill -9 $$'"], 137),
        (["sleep 60", "/nowhere/program"], 127),
        (["sh -c 'read line || exit 5'"], 143),
    ],
)
def test_fanout_ends_with_the_first_that_fails(lines: list[str], status: int) -> None:
    fan = subprocess.Popen(nodes.fanout([shlex.split(line) for line in lines]), stderr=subprocess.DEVNULL)
    if status == 143:
        time.sleep(0.5)
        assert fan.poll() is None
        fan.terminate()
    assert fan.wait(20) == status


def eventually(condition: object, seconds: float = 20.0) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())
