"""Ranks on hosts over real ssh: a study, the words that arrive, and one line for each fault. Needs root and an sshd."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import far
import pytest
from ssh_hosts import PORT, Hosts, missing, slots, ssh_hosts

from benches import record
from launchers import nodes
from launchers.remote import Ssh, SshNodes
from launchers.spec import Command, LaunchSpec
from launchers.tools import Tools

WHY = missing()
pytestmark = [
    pytest.mark.skipif(WHY is not None, reason=str(WHY)),
    pytest.mark.horovod,
    pytest.mark.timeout(400),
]
WORDS = ["model=mlp", "device=cpu", "cluster=hosts", f"cluster.ssh_port={PORT}", "limit_s=120"]
STUDY = ["study.launches=1", "study.rounds=1", "block_steps=5", "study.control=false", "study.confirm=false"]
DDP = "study.contestants.ddp={engine: ddp}"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh")) as up:
        yield up


def test_a_study_on_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    names = hosts.names[:2]
    contestants = [DDP, "study.contestants.horovod={engine: horovod, transport: [gloo, mpi]}"]
    words = [*WORDS, *STUDY, *contestants, slots(names), "cluster.nic=eth0", f"cluster.identity_file={hosts.key}"]
    done = hosts.run(sys.executable, "-m", "benches", "run", *words, f"results={tmp_path}", limit_s=300)
    assert done.returncode == 0, done.stderr
    found = [record.read(path.parent) for path in tmp_path.glob("study/launches/*/0/record.json")]
    assert sorted(header.case.cell for header in found) == ["ddp/gloo", "horovod/gloo", "horovod/mpi"]
    for header in found:
        assert header.status == "ok"
        assert [rank["host"] for rank in header.provenance["ranks"]] == list(names)
        assert [one["host"] for one in header.provenance["site"]["hosts"]] == list(names)


COMMANDS: dict[str, Callable[[LaunchSpec, SshNodes], Command]] = {
    "torchrun": nodes.torchrun,
    "horovodrun": lambda spec, on: nodes.horovodrun(spec, on, Tools().horovodrun(sys.executable)),
    "mpirun": lambda spec, on: nodes.mpirun(spec, on, Tools().mpi(sys.executable)),
}


@pytest.mark.parametrize("launcher", COMMANDS)
def test_words_and_variables_arrive_unchanged(launcher: str, hosts: Hosts, tmp_path: Path) -> None:
    """Hosts by address."""
    on = SshNodes(hosts.addresses[:2], "000000ff00", Ssh(port=PORT, identity_file=hosts.key), "eth0")
    spec = far.spec(tmp_path)
    done = hosts.run("sh", "-c", COMMANDS[launcher](spec, on).text(), limit_s=120)
    assert done.returncode == 0, done.stderr
    far.check(spec, hosts.names[:2])


FAULTS: dict[str, tuple[Callable[[Hosts], list[str]], str]] = {
    "unknown": (
        lambda hosts: [slots([hosts.names[0], "nowhere.invalid"])],
        "cluster.hosts=nowhere.invalid: ssh fails: ssh: Could not resolve hostname nowhere.invalid",
    ),
    "refused": (
        lambda hosts: [slots(hosts.names[:2]), f"cluster.identity_file={hosts.other_key}"],
        "cluster.hosts={0}: ssh fails: root@{0}: Permission denied (publickey)",
    ),
    "bare": (
        lambda hosts: [slots([hosts.names[0], hosts.names[2]])],
        "cluster.hosts={2}: " + sys.executable + " does not run there",
    ),
    "loopback": (
        lambda hosts: [slots([hosts.names[0], hosts.names[3]])],
        "cluster.hosts={3}: takes {3} for 127.0.1.1, where no other reaches it; correct its /etc/hosts",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_before_ranks_start(fault: str, hosts: Hosts, tmp_path: Path) -> None:
    words, line = FAULTS[fault]
    key = f"cluster.identity_file={hosts.key}"
    given = [*WORDS, *STUDY, DDP, key, *words(hosts), f"results={tmp_path}"]
    done = hosts.run(sys.executable, "-m", "benches", "run", *given, limit_s=120)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"ringduel: {line.format(*hosts.names)}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "no study is frozen"
