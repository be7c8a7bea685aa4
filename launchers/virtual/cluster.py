"""Bring a virtual cluster up and take it down, after success, failure and a driver killed with -9. Seconds."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benches.errors import UserError
from launchers.processes import send, stat_of
from launchers.supervise import last_line, output
from launchers.virtual.plan import (
    SUBNETS,
    Link,
    Plan,
    enter_text,
    hosts_text,
    make_plan,
    prefix_of,
    script,
    ssh_text,
    up_commands,
)

FOLDER = Path("/run/ringduel")
"""Holds a folder for each cluster that is up, named by its prefix; empty after a reboot, as the namespaces are gone."""
LIMIT_S = 60.0
"""To make or remove a cluster; 8 nodes take 2 s on two busy cores."""
GONE_S = 3.0
"""To wait for killed processes of a node."""
OWNER = "owner.json"


@dataclass(frozen=True)
class Cluster:
    """A virtual cluster that is up."""

    plan: Plan
    folder: Path

    @property
    def enter(self) -> str:
        """Program `enter NODE WORD…` that runs the words on a node."""
        return str(self.folder / "enter")

    @property
    def ssh(self) -> str:
        """Program that stands in for ssh; the only one in its folder, which may lead a PATH."""
        return str(self.folder / "bin" / "ssh")


@dataclass(frozen=True)
class Owner:
    """The process that a cluster lives for."""

    pid: int
    started: int
    """Ticks since boot: a later process may get the same pid."""
    subnet: int
    """Of the cluster, so that two have different ones."""

    def lives(self) -> bool:
        """Whether it is still there."""
        stat = stat_of(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in "ZX"


@contextlib.contextmanager
def virtual_cluster(
    study: str, nodes: int, link: Link, slow_node: Mapping[int, Link] | None = None
) -> Iterator[Cluster]:
    """A cluster for as long as the context lasts. First removes what dead owners left. Raises UserError."""
    check_here()
    clean()
    folder, owner = _claim(study)
    try:
        plan = make_plan(folder.name, owner.subnet, nodes, link, slow_node)
        yield _up(plan, folder)
    finally:
        down(folder.name)


def check_here() -> None:
    """Raises UserError where this process cannot make namespaces."""
    if missing := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        raise UserError(f"cluster=virtual: no {missing[0]} on the PATH; install iproute2 and util-linux")
    if os.geteuid() != 0:
        raise UserError(
            "cluster=virtual: needs root, or user namespaces: unshare --user --map-root-user --net --mount "
            "sh -c 'mount -t tmpfs tmpfs /run && exec ringduel …'"
        )


def clean() -> list[str]:
    """Remove the clusters whose owner is dead, and no other; returns their prefixes."""
    with _locked():
        dead = [folder.name for folder in _folders() if (owner := _owner(folder)) is None or not owner.lives()]
        for prefix in dead:
            down(prefix)
    return dead


def down(prefix: str) -> None:
    """Remove all of a cluster: processes on its nodes, namespaces, devices, files. What is gone already is no error."""
    names = _namespaces(prefix)
    _kill(names)
    # The driver's device goes by itself with the switch, but a moment later.
    gone = [("ip", "link", "delete", prefix), *(("ip", "netns", "delete", name) for name in names)]
    _run("\n".join(f"{' '.join(words)} 2>/dev/null || :" for words in gone))
    shutil.rmtree(FOLDER / prefix, ignore_errors=True)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One process at a time claims or cleans; the kernel lets go of the lock of one that dies."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    with (FOLDER / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _claim(study: str) -> tuple[Path, Owner]:
    """A folder and a subnet that are this process's alone."""
    stat = stat_of(os.getpid())
    assert stat is not None
    with _locked():
        taken = {owner.subnet for folder in _folders() if (owner := _owner(folder))}
        free = next((subnet for subnet in range(len(SUBNETS)) if subnet not in taken), None)
        if free is None:
            raise UserError(f"cluster=virtual: {len(SUBNETS)} clusters are up already; see {FOLDER}")
        owner = Owner(os.getpid(), stat.started, free)
        folder = FOLDER / prefix_of(f"{study}\0{free}", owner.pid, owner.started)
        folder.mkdir()
        (folder / OWNER).write_text(json.dumps(asdict(owner)))
    return folder, owner


def _up(plan: Plan, folder: Path) -> Cluster:
    cluster = Cluster(plan, folder)
    hosts = folder / "hosts"
    hosts.write_text(hosts_text(plan))
    (folder / "bin").mkdir()
    for path, text in ((cluster.enter, enter_text(plan, str(hosts))), (cluster.ssh, ssh_text(plan, cluster.enter))):
        Path(path).write_text(text)
        Path(path).chmod(0o755)
    code, said = _run(script(up_commands(plan)))
    if code != 0:
        raise UserError(f"cluster=virtual: {_reason(said)}")
    return cluster


def _reason(said: str) -> str:
    """The command that failed and what it said, in one line."""
    command = next((line for line in reversed(said.splitlines()) if line.startswith("+ ")), "+ sh")[2:]
    if "netem" in command and "kind is unknown" in said:
        return "this kernel has no netem (CONFIG_NET_SCH_NETEM); set cluster.link_latency_ms=null"
    return f"{command}: {last_line(said)}"


def _run(text: str) -> tuple[int | None, str]:
    return output(["sh", "-c", text], limit_s=LIMIT_S)


def _folders() -> list[Path]:
    return sorted(FOLDER.glob("rd*/")) if FOLDER.is_dir() else []


def _owner(folder: Path) -> Owner | None:
    """None where it has just been removed, or where its maker died while it claimed."""
    with contextlib.suppress(OSError, ValueError):
        return Owner(**json.loads((folder / OWNER).read_text()))
    return None


def _namespaces(prefix: str) -> list[str]:
    names = (line.split()[0] for line in _run("ip netns list")[1].splitlines() if line.strip())
    return [name for name in names if re.fullmatch(rf"{re.escape(prefix)}-(sw|n\d+)", name)]


def _kill(namespaces: list[str]) -> None:
    """Kill what runs on the nodes, or their namespaces would live on without names."""
    # No number in an error's text may be taken for a process.
    ask = "\n".join(f"ip netns pids {name} 2>/dev/null" for name in namespaces)
    deadline = time.monotonic() + GONE_S
    while (pids := _run(ask)[1].split()) and time.monotonic() < deadline:
        send([int(pid) for pid in pids if pid.isdigit()], signal.SIGKILL)
        time.sleep(0.02)
