"""Before ranks start on other machines: what each host is asked, and what its answer means. Pure but for `ask`.

Seconds; memory in GiB.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benches.errors import UserError
from launchers.remote import CHECKOUT, CONNECT_S, Ssh
from launchers.supervise import json_line, last_line, output

LIMIT_S = CONNECT_S + 30.0
"""For one host's answer; a cold network file system is slow."""
HOSTS = "cluster.hosts"
MOST_OFFSET_S = 1.0
"""Clocks further apart make records and logs of different hosts hard to put in order; nothing is timed across hosts."""
PACKAGES = ("torch", "horovod", "mpi4py", "numpy")

# Looks the packages up instead of importing them: torch alone takes seconds.
PROBE = """
import hashlib, importlib.metadata, json, os, pathlib, socket, sys, time
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
def resolve(name):
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None
checkout, packages, names = json.loads(sys.argv[1])
digest = hashlib.sha256()
for folder in ("benches", "launchers"):
    for path in sorted(pathlib.Path(checkout, folder).rglob("*.py")):
        digest.update(str(path).encode() + b"\\0" + path.read_bytes())
memory = dict(line.split()[:2] for line in open("/proc/meminfo"))
print(json.dumps({
    "name": socket.gethostname(), "time": time.time(), "free_gib": int(memory["MemAvailable:"]) / 2**20,
    "versions": {"python": sys.version.split()[0], **{name: version(name) for name in packages}},
    "code": digest.hexdigest()[:12], "nics": sorted(os.listdir("/sys/class/net")),
    "addresses": {name: resolve(name) for name in [socket.gethostname(), *names]}}))
"""


@dataclass(frozen=True)
class Answer:
    """What a host says of itself."""

    name: str
    offset_s: float
    """Its clock less ours, at the middle of the question."""
    free_gib: float
    versions: Mapping[str, str | None]
    code: str
    """Hash of this project's files there."""
    nics: tuple[str, ...]
    addresses: Mapping[str, str | None]
    """What it takes its own name and the others' for; null: it does not know that name."""


def probe_words(python: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """Words that ask a host, on which they run."""
    return (python, "-c", PROBE, json.dumps([str(CHECKOUT), PACKAGES, list(hosts)]))


def ask(host: str, python: str, hosts: Sequence[str], ssh: Ssh) -> Answer:
    """Ask one host over ssh. Raises UserError where it cannot be reached or has no such interpreter."""
    asked = time.time()
    code, text = output(ssh.words(host, f"exec {shlex.join(probe_words(python, hosts))}"), limit_s=LIMIT_S)
    return parse(host, python, code, text, (asked + time.time()) / 2)


def parse(host: str, python: str, code: int | None, text: str, asked: float) -> Answer:
    """The answer in what ssh wrote and the status it ended with. `asked`: our clock then. Raises UserError."""
    last = last_line(text)
    if code is None:
        raise UserError(f"cluster.hosts={host}: no answer within {LIMIT_S:g} s")
    # ssh's own status for a host that it does not reach, or that does not let us in.
    if code == 255:
        raise UserError(f"cluster.hosts={host}: ssh fails: {last}; `ssh {host} true` must work without a password")
    if code != 0:
        raise UserError(f"cluster.hosts={host}: {python} does not run there ({last}); install the same environment")
    return answer(f"cluster.hosts={host}", python, text, asked)


def answer(where: str, python: str, text: str, asked: float) -> Answer:
    """The answer in what a host wrote; `asked`: our clock then. Raises UserError, which begins with `where`."""
    said = json_line(text)
    if said is None:
        raise UserError(f"{where}: {python} does not answer there ({last_line(text)}); install the same environment")
    said["offset_s"] = said.pop("time") - asked
    return Answer(**{**said, "nics": tuple(said["nics"])})


def check(hosts: Sequence[str], answers: Sequence[Answer], nic: str | None, key: str = HOSTS) -> list[str]:
    """Raises UserError for what makes ranks fail or runs differ; returns warnings, one line each.

    key: what names the hosts.
    """
    _check_same(hosts, answers, key)
    for host, answer in zip(hosts, answers, strict=True):
        _check_addresses(host, hosts, answer, key)
        if nic is not None and nic not in answer.nics:
            raise UserError(f"cluster.nic={nic}: {host} has no such device; choices: {', '.join(answer.nics)}")
    return [
        f"{host}: its clock is {answer.offset_s:+.1f} s from ours"
        for host, answer in zip(hosts, answers, strict=True)
        if abs(answer.offset_s) > MOST_OFFSET_S
    ]


def _check_same(hosts: Sequence[str], answers: Sequence[Answer], key: str) -> None:
    first = answers[0]
    for host, answer in zip(hosts[1:], answers[1:], strict=True):
        for package, version in answer.versions.items():
            if version != first.versions[package]:
                raise UserError(
                    f"{key}={host}: {package} {version} there, {first.versions[package]} on {hosts[0]}; "
                    "install the same version on all"
                )
        if answer.code != first.code:
            raise UserError(
                f"{key}={host}: another state of this project at {CHECKOUT} than on {hosts[0]}; copy it there"
            )
    seen: dict[str, str] = {}
    for host, answer in zip(hosts, answers, strict=True):
        if answer.name in seen:
            raise UserError(f"{key}={host}: is the same machine as {seen[answer.name]} ({answer.name})")
        seen[answer.name] = host


def _check_addresses(host: str, hosts: Sequence[str], answer: Answer, key: str) -> None:
    """Ranks tell each other the address that their own name resolves to: 127.0.1.1 would have them wait for minutes."""
    for name in (answer.name, *hosts):
        address = answer.addresses[name]
        if address is None and name != answer.name:
            raise UserError(f"{key}={host}: does not know {name}; add it to its /etc/hosts, or give addresses")
        if address and len(hosts) > 1 and ipaddress.ip_address(address).is_loopback:
            raise UserError(
                f"{key}={host}: takes {name} for {address}, where no other reaches it; correct its /etc/hosts"
            )
