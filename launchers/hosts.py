"""`hosts=[a:8,b:8]`: machines that are reached over ssh. Parsing and checking, as pure functions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from benches.errors import UserError

# What horovodrun takes (horovod/runner/common/util/hosts.py), less a dash in front, which ssh would read as an option.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
FORM = "takes a list such as [a:8,b:8], host name or IPv4 address and slots"


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it may hold."""

    name: str
    """Host name or IPv4 address, by which every other host reaches it."""
    slots: int


def parse_hosts(entries: Sequence[str]) -> tuple[Host, ...]:
    """The hosts of `cluster.hosts`, in order: the first holds rank 0. Raises UserError."""
    if not entries:
        raise UserError(f"cluster.hosts=[]: names no host; {FORM}")
    hosts = tuple(_parse(entry.strip()) for entry in entries)
    seen: set[str] = set()
    for host in hosts:
        if host.name.lower() in seen:
            raise UserError(f"cluster.hosts={host.name}: is there twice; add up its slots in one entry")
        seen.add(host.name.lower())
    return hosts


def parse_hostfile(text: str) -> tuple[Host, ...]:
    """The hosts of a file with lines `a slots=8`, as Open MPI, horovodrun and the MPI operator write it, or `a:8`."""
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return parse_hosts([":".join(words).replace(":slots=", ":") for words in lines if words])


def place(hosts: Sequence[Host], nodes: int, ranks_per_node: int) -> tuple[str, ...]:
    """Names of the hosts that hold the ranks, node by node: the first `nodes`. Raises UserError where they do not."""
    if nodes > len(hosts):
        raise UserError(f"cluster.nodes={nodes}: cluster.hosts names {len(hosts)}")
    for host in hosts[:nodes]:
        if host.slots < ranks_per_node:
            raise UserError(f"cluster.ranks_per_node={ranks_per_node}: host {host.name} has slots for {host.slots}")
    return tuple(host.name for host in hosts[:nodes])


def _parse(entry: str) -> Host:
    if not entry:
        raise UserError(f"cluster.hosts='': an empty entry; {FORM}")
    if entry.count(":") > 1 or entry.startswith("["):
        _refuse_address(entry)
    name, colon, slots = entry.partition(":")
    if "@" in name:
        raise UserError(
            f"cluster.hosts={entry!r}: horovodrun takes no user name; set User for that host in ~/.ssh/config"
        )
    if not NAME.fullmatch(name):
        raise UserError(f"cluster.hosts={entry!r}: {name!r} is no host name; {FORM}")
    if not colon:
        raise UserError(f"cluster.hosts={entry!r}: says no slots; write {name}:8 for 8 ranks")
    if not re.fullmatch(r"[0-9]{1,5}", slots) or int(slots) == 0:
        raise UserError(f"cluster.hosts={entry!r}: {slots!r} is no number of slots; takes 1 or more")
    return Host(name, int(slots))


def _refuse_address(entry: str) -> NoReturn:
    address = entry.strip("[]").rpartition("]:")[0] or entry
    for text in (address, entry.rpartition(":")[0]):
        try:
            ipaddress.IPv6Address(text.strip("[]").partition("%")[0])
        except ValueError:
            continue
        raise UserError(f"cluster.hosts={entry!r}: horovodrun takes no IPv6 address; give a name or an IPv4 address")
    raise UserError(f"cluster.hosts={entry!r}: more than one colon; {FORM}")
