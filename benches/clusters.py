"""What the launches of a study run on: this machine, virtual nodes of it, hosts over ssh, an allocation of Slurm, pods.
Rates in 10**9 bit/s.

`plan` asks `planned`, which starts nothing; the driver asks a Site, whose clusters come up when they are first needed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benches import allocation
from benches.allocation import Allocation
from benches.control import LOOPBACK
from benches.errors import UserError
from benches.spec import Case, ClusterSpec, Study
from launchers import hostcheck, kubernetes
from launchers.hosts import parse_hosts, place
from launchers.nodes import Nodes, port
from launchers.remote import CONNECT_S, Ssh, SshNodes
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.supervise import output
from launchers.virtual import rate
from launchers.virtual.cluster import FOLDER, Cluster, virtual_cluster
from launchers.virtual.nodes import VirtualNodes
from launchers.virtual.plan import ADDRESSES, Link, Plan, make_plan

OVER_SSH = ("hosts", "kubernetes")
"""Kinds of cluster whose nodes are reached so."""


@dataclass(frozen=True)
class Place:
    """Where one launch runs."""

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of all its processes, on every node."""
    host: str = LOOPBACK
    """This machine's address as its agents reach it."""
    nodes: Nodes | SlurmNodes | None = None
    """None: this machine itself."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What its record says of the site, see `provenance.site` in results/README.md."""
    names: tuple[str, ...] = ()
    """What the nodes call themselves, by number: ranks that run elsewhere end the launch. Empty: not known."""


@dataclass(frozen=True)
class Shape:
    """Links of a virtual cluster; cases of one shape share a cluster."""

    gbps: float | None
    latency_ms: float | None
    slow: tuple[tuple[str, float], ...]
    """Rate of single nodes, by number."""

    @classmethod
    def of(cls, cluster: ClusterSpec) -> Shape:
        return cls(cluster.link_gbps, cluster.link_latency_ms, tuple(sorted(cluster.slow_node.items())))

    @property
    def link(self) -> Link:
        return Link(self.gbps, self.latency_ms)

    @property
    def others(self) -> dict[int, Link]:
        """Links of single nodes."""
        return {int(node): Link(gbps, self.latency_ms) for node, gbps in self.slow}


def shapes(study: Study) -> dict[Shape, int]:
    """The virtual clusters that the study needs, each with its largest number of nodes."""
    found: dict[Shape, int] = {}
    for cluster in (one.case.cluster for one in study.contestants):
        if cluster.name == "virtual":
            shape = Shape.of(cluster)
            found[shape] = max(found.get(shape, 0), cluster.nodes)
    return found


def ssh_nodes(cluster: ClusterSpec, token: str) -> SshNodes:
    """The hosts or pods that hold the ranks. Raises UserError where they cannot."""
    hosts = kubernetes.workers() if cluster.name == "kubernetes" else parse_hosts(cluster.hosts)
    names = place(hosts, cluster.nodes, cluster.ranks_per_node)
    return SshNodes(names, token, Ssh(port=cluster.ssh_port, identity_file=cluster.identity_file), cluster.nic)


def planned(study: Study, case: Case, slurm: SlurmSpec | None = None) -> Place:
    """Where a launch of the case will run, with names and token that stand for those of a run. Starts nothing."""
    if slurm is not None:
        names = tuple(f"node{number}" for number in range(case.cluster.nodes))
        cpus = slurm.cpus_per_node or case.cluster.ranks_per_node * case.cluster.threads_per_rank
        return Place(case.id, nodes=SlurmNodes(names, cpus, case.id, names[0], slurm, case.cluster.nic))
    if case.cluster.name == "kubernetes" and not kubernetes.inside():
        pods = kubernetes.worker_names(study.name, case.cluster.nodes)
        return Place(case.id, nodes=SshNodes(pods, case.id, nic=case.cluster.nic))
    if case.cluster.name in OVER_SSH:
        return Place(case.id, nodes=ssh_nodes(case.cluster, case.id))
    if case.cluster.name != "virtual":
        return Place(case.id)
    found, shape = shapes(study), Shape.of(case.cluster)
    number = list(found).index(shape)
    plan = make_plan(f"CLUSTER{number}", number, found[shape], shape.link, shape.others)
    return Place(case.id, plan.driver, VirtualNodes(Cluster(plan, FOLDER / plan.prefix), case.cluster.nodes, case.id))


def stand_ins(place: Place, text: str) -> dict[str, str]:
    """What stands in the text of a planned command for something that is decided when the launch starts, and for what;
    empty where the command runs as it stands."""
    if not isinstance(place.nodes, VirtualNodes):
        return {}
    plan = place.nodes.cluster.plan
    network = str(plan.network.network_address).rpartition(".")[0]
    known = {
        plan.prefix: "name of the cluster: rd and 8 hexadecimal digits, by study and driver",
        f"{network}.": f"its network: the first of {ADDRESSES} that no other cluster has",
        f":{port(place.token)}": "port at which the agents meet: by launch",
        f"--rdzv-id={place.token}": "name of the launch: 16 random hexadecimal digits",
    }
    return {word: meaning for word, meaning in known.items() if word in text}


class Site:
    """What a study runs on. `close` takes down what came up."""

    def __init__(self, study: Study, tell: Callable[[str], None], slurm: SlurmSpec | None = None) -> None:
        """`tell` shows one line to whoever watches. slurm: what was asked of it."""
        self._study, self._tell, self._slurm = study, tell, slurm
        self._allocation: Allocation | None = None
        self._up = contextlib.ExitStack()
        self._clusters: dict[Shape, Cluster] = {}
        self._facts: dict[object, dict[str, Any]] = {}

    def close(self) -> None:
        """Remove the virtual clusters; no launch may be alive."""
        self._up.close()

    def place(self, case: Case) -> Place:
        """Where the next launch of the case runs. Nothing else may run: links are tried where they are new.

        Raises UserError.
        """
        token = secrets.token_hex(8)
        if case.cluster.name == "virtual":
            return self._on_virtual(case.cluster, token)
        if case.cluster.name in OVER_SSH:
            nodes = ssh_nodes(case.cluster, token)
            told = self._of_hosts(case, nodes)
            names = tuple(str(one["name"]) for one in told["hosts"])
            return Place(token, address_towards(nodes.hosts), nodes, told, names)
        if self._slurm is not None:
            return self._in_allocation(case, self._slurm, token)
        return Place(token)

    def _on_virtual(self, spec: ClusterSpec, token: str) -> Place:
        shape = Shape.of(spec)
        if shape not in self._clusters:
            made = virtual_cluster(self._study.name, shapes(self._study)[shape], shape.link, shape.others)
            self._clusters[shape] = self._up.enter_context(made)
        cluster = self._clusters[shape]
        # By number of nodes: what a host can carry for two it may not for eight.
        part = Cluster(replace(cluster.plan, nodes=cluster.plan.nodes[: spec.nodes]), cluster.folder)
        if (shape, spec.nodes) not in self._facts:
            self._facts[shape, spec.nodes] = self._try_links(part)
        names = tuple(node.name for node in part.plan.nodes)
        nodes = VirtualNodes(part, spec.nodes, token)
        return Place(token, cluster.plan.driver, nodes, self._facts[shape, spec.nodes], names)

    def _try_links(self, cluster: Cluster) -> dict[str, Any]:
        carried = measured(cluster)
        if carried is not None and carried.short:
            self._tell(short_text(cluster.plan, carried))
        return facts(cluster.plan, carried)

    def _in_allocation(self, case: Case, asked: SlurmSpec, token: str) -> Place:
        self._allocation = self._allocation or allocation.current()
        nodes = slurm_nodes(self._allocation, case.cluster, asked, token)
        key = (nodes.hosts, nodes.nic, case.python)
        if key not in self._facts:
            answers = allocation.look(nodes, case.python or sys.executable)
            told = self._told(nodes.hosts, answers, nodes.nic, allocation.NODES)
            job = {"job": self._allocation.job, "partition": self._allocation.partition}
            self._facts[key] = {"kind": "slurm", **job, "nic": nodes.nic, "hosts": told}
        return Place(token, nodes.driver, nodes, self._facts[key])

    def _of_hosts(self, case: Case, nodes: SshNodes) -> dict[str, Any]:
        key = (nodes.hosts, nodes.ssh, nodes.nic, case.python)
        if key not in self._facts:
            told = self._told(nodes.hosts, ask_all(nodes, case.python), nodes.nic, hostcheck.HOSTS)
            self._facts[key] = {"kind": case.cluster.name, "nic": nodes.nic, "hosts": told}
        return self._facts[key]

    def _told(
        self, hosts: Sequence[str], answers: Sequence[hostcheck.Answer], nic: str | None, key: str
    ) -> list[dict[str, Any]]:
        for line in hostcheck.check(hosts, answers, nic, key):
            self._tell(line)
        return [
            {"host": host, "name": one.name, "offset_s": one.offset_s, "free_gib": one.free_gib}
            for host, one in zip(hosts, answers, strict=True)
        ]


def measured(cluster: Cluster) -> rate.Carried | None:
    """What the links carry, the better of two tries where one does not do. Raises UserError.

    This machine may have been busy for a moment, so that nodes came too late to their appointment, or links fell short.
    """
    try:
        first = rate.measure(cluster)
    except UserError:
        return rate.measure(cluster)
    if first is None or not first.short:
        return first
    second = rate.measure(cluster)
    return first if second is None or min(second.gbps) < min(first.gbps) else second


def facts(plan: Plan, carried: rate.Carried | None) -> dict[str, Any]:
    """What a record says of a virtual cluster, by node; `carried`: None for one node alone."""
    return {
        "kind": "virtual",
        "link_gbps": [node.link.gbps for node in plan.nodes],
        "latency_ms": [node.link.latency_ms for node in plan.nodes],
        "carried_gbps": list(carried.gbps) if carried else None,
        "short": list(carried.short) if carried else [],
    }


def short_text(plan: Plan, carried: rate.Carried) -> str:
    """One line on links that the host cannot carry."""
    node = min(carried.short, key=lambda one: carried.gbps[one])
    return (
        f"cluster.link_gbps={carried.link_gbps[node]:g}: this machine carries {carried.gbps[node]:.2g} Gb/s where "
        f"{len(plan.nodes)} nodes send at once; such rows are marked host-bound"
    )


def check(study: Study, results: Path) -> None:
    """Raise UserError where a cluster of the study cannot be had. Makes and removes one node for each kind of link,
    and asks each host. Slurm's nodes are asked by `check_nodes`."""
    for shape, count in shapes(study).items():
        make_plan("", 0, count, shape.link, shape.others)
        with virtual_cluster(study.name, 1, shape.link):
            pass
    seen: dict[object, list[frozenset[str]]] = {}
    for case in largest_first(study):
        if case.cluster.name in OVER_SSH:
            nodes = ssh_nodes(case.cluster, case.id)
            hosts = frozenset(nodes.hosts)
            asked = seen.setdefault((nodes.ssh, nodes.nic, case.python), [])
            if not any(hosts <= others for others in asked):
                asked.append(hosts)
                hostcheck.check(nodes.hosts, ask_all(nodes, case.python), nodes.nic)
                check_shared(nodes, results)


def check_nodes(study: Study, asked: SlurmSpec) -> SlurmNodes:
    """All nodes that the study needs. Raises UserError where the allocation has too few, or nodes differ."""
    cases = largest_first(study)
    nodes = slurm_nodes(allocation.current(), cases[0].cluster, asked, cases[0].id)
    for python in {case.python for case in cases}:
        hostcheck.check(nodes.hosts, allocation.look(nodes, python or sys.executable), nodes.nic, allocation.NODES)
    return nodes


def largest_first(study: Study) -> list[Case]:
    """The cases, those on many nodes first."""
    return sorted((one.case for one in study.contestants), key=lambda case: -case.cluster.nodes)


def ask_all(nodes: SshNodes, python: str | None) -> list[hostcheck.Answer]:
    """What each host says of itself, in order. Raises UserError."""
    return [hostcheck.ask(host, python or sys.executable, nodes.hosts, nodes.ssh) for host in nodes.hosts]


def check_shared(nodes: SshNodes, results: Path) -> None:
    """Raise UserError where a host does not see the folder of results: ranks find the driver and leave their logs
    there."""
    there = next(path for path in (results, *results.parents) if path.exists())
    with tempfile.NamedTemporaryFile(dir=there, prefix=".ringduel-") as seen:
        for host in nodes.hosts:
            words = nodes.ssh.words(host, f"test -e {shlex.quote(seen.name)}")
            if output(words, limit_s=CONNECT_S + 10)[0] != 0:
                raise UserError(f"results={results}: {host} does not see {there}; take a folder that all hosts share")


def slurm_nodes(found: Allocation, cluster: ClusterSpec, asked: SlurmSpec, token: str) -> SlurmNodes:
    """The nodes of the allocation that hold the ranks. Raises UserError where it has too few."""
    if cluster.nodes > len(found.hosts):
        raise UserError(f"cluster.nodes={cluster.nodes}: the allocation of job {found.job} has {len(found.hosts)}")
    hosts = found.hosts[: cluster.nodes]
    return SlurmNodes(hosts, found.cpus, token, address_towards(hosts, allocation.NODES), asked, cluster.nic)


def address_towards(hosts: tuple[str, ...], key: str = hostcheck.HOSTS) -> str:
    """This machine's address as these hosts reach it: that of the way to the first of them that is another machine.

    key: what names the hosts. Raises UserError.
    """
    for host in hosts:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, 9))  # sends nothing
            except OSError as error:
                raise UserError(f"{key}={host}: there is no way to it from here: {error.strerror}") from error
            address = str(probe.getsockname()[0])
        if not ipaddress.ip_address(address).is_loopback:
            return address
    return LOOPBACK
