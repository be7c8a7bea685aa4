"""Hosts for real ssh: network namespaces of this machine, an sshd in each, and keys and settings of the tests' own.

Hosts 0 and 1 are as they should be; host 2 lacks the environment of the tests, host 3 takes its own name for loopback.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemons import PATH, absent, daemon, run, until

from launchers.virtual.cluster import Cluster, virtual_cluster
from launchers.virtual.plan import Link, hosts_text

PORT = 2222
UP_S = 20.0
FOREIGN = ("SLURM", "HOROVOD_", "OMPI_", "PMI")
"""Variables of whoever started the tests that would reach the ranks."""


@dataclass(frozen=True)
class Hosts:
    """Hosts that are up."""

    cluster: Cluster
    folder: Path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.cluster.plan.nodes)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(node.address for node in self.cluster.plan.nodes)

    @property
    def key(self) -> str:
        """Private key that all hosts let in."""
        return str(self.folder / "key")

    @property
    def other_key(self) -> str:
        """Private key that none does."""
        return str(self.folder / "other")

    def run(self, *words: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Words on the first host, where our ssh leads the PATH."""
        path = f"PATH={self.folder / 'bin'}:{PATH}"
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        start = [self.cluster.enter, self.names[0], "env", path, *words]
        return run(start, env, limit_s)


def missing() -> str | None:
    """Why there can be no such hosts here; None: nothing."""
    return absent(("sshd", "ssh", "ssh-keygen"), "openssh-server, openssh-client")


@contextlib.contextmanager
def ssh_hosts(folder: Path) -> Iterator[Hosts]:
    """Four hosts for as long as the context lasts."""
    with virtual_cluster("ssh", 4, Link()) as cluster, contextlib.ExitStack() as daemons:
        hosts = Hosts(cluster, folder)
        for name in ("key", "other", "host_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(words, check=True, timeout=20)
        (folder / "authorized").write_bytes((folder / "key.pub").read_bytes())
        _client(hosts)
        # Where sshd separates its privileges; Debian's service makes it when it starts.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for number in range(4):
            daemons.enter_context(_sshd(hosts, number))
        yield hosts


def _client(hosts: Hosts) -> None:
    """The real ssh with settings of ours alone, under its own name."""
    kind, key, *_ = (hosts.folder / "host_key.pub").read_text().split()
    known = [f"[{name}]:{PORT} {kind} {key}" for name in (*hosts.names, *hosts.addresses)]
    (hosts.folder / "known").write_text("\n".join(known) + "\n")
    (hosts.folder / "client").write_text(
        f"UserKnownHostsFile {hosts.folder}/known\n"
        "GlobalKnownHostsFile /dev/null\n"
        "StrictHostKeyChecking yes\n"
        # Instead of the user's own.
        f"IdentityFile {hosts.folder}/none\n"
        "IdentitiesOnly yes\n"
        "IdentityAgent none\n"
    )
    program = hosts.folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {hosts.folder}/client "$@"\n')
    program.chmod(0o755)


@contextlib.contextmanager
def _sshd(hosts: Hosts, number: int) -> Iterator[None]:
    """The sshd of one host."""
    conf, log = hosts.folder / f"sshd{number}", hosts.folder / f"sshd{number}.log"
    conf.write_text(
        f"ListenAddress {hosts.addresses[number]}\n"
        f"Port {PORT}\n"
        f"HostKey {hosts.folder}/host_key\n"
        f"AuthorizedKeysFile {hosts.folder}/authorized\n"
        "PermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "StrictModes no\n"
        "UsePAM no\n"
        "PidFile none\n"
    )
    sshd = shlex.join([str(shutil.which("sshd", path=PATH)), "-D", "-e", "-f", str(conf)])
    words = [hosts.cluster.enter, hosts.names[number], "unshare", "--mount", "sh", "-ec"]
    with daemon([*words, f"{_otherwise(hosts, number)}\nexec {sshd}"], log):
        until(lambda: "listening" in log.read_text(), UP_S, log.read_text)
        yield


def _otherwise(hosts: Hosts, number: int) -> str:
    """Shell text that makes a host worse than the others, as far as its own sshd sees."""
    if number == 2:
        (hosts.folder / "empty").mkdir()
        return shlex.join(["mount", "--bind", str(hosts.folder / "empty"), sys.prefix])
    if number == 3:
        text = hosts_text(hosts.cluster.plan).replace(f"{hosts.addresses[3]} ", "127.0.1.1 ")
        (hosts.folder / "hosts").write_text(text)
        return shlex.join(["mount", "--bind", str(hosts.folder / "hosts"), "/etc/hosts"])
    return ""


def slots(names: Sequence[str]) -> str:
    """`cluster.hosts` with one rank on each."""
    return f"cluster.hosts=[{','.join(f'{name}:1' for name in names)}]"
