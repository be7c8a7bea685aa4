"""What a virtual cluster consists of, and the commands that make it: pure values and text. Rates in 10**9 bit/s."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from benches.errors import UserError

ADDRESSES = IPv4Network("198.18.0.0/15")
"""Set aside for benchmarks of networks (RFC 2544, RFC 6890): no site routes it."""
SUBNETS = tuple(ADDRESSES.subnets(new_prefix=24))
"""One for each cluster that is up."""
MOST_NODES = 250
DEVICE = "eth0"
"""A node's one network device, by the same name on all; what GLOO_SOCKET_IFNAME and its kin must name."""
LEAST_BURST = 128 * 1024
"""Bytes. A packet before segmentation has up to 64 KiB, and tbf cuts up whatever exceeds its bucket (tc-tbf(8))."""
BURST_S = 250e-6
"""The bucket in seconds at the link's rate: what an idle link may send at once, 0.1 % of 100 MB at 3 Gb/s."""
QUEUE_S = 0.05
"""How long a packet may wait for the link before it is dropped, as in the buffer of a switch's port."""
NO_IPV6 = "file=/proc/sys/net/ipv6/conf/all/disable_ipv6; [ ! -e $file ] || echo 1 >$file"
"""Else each device has a link-local address too, and libraries may pick that one."""


@dataclass(frozen=True)
class Link:
    """A node's way to the switch and back."""

    gbps: float | None = None
    """Rate of either direction; null: as fast as the host copies."""
    latency_ms: float | None = None
    """Delay of what the node sends: a round trip between two such nodes takes twice as long. Needs netem."""


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str
    """Its host name, and that of its network namespace."""
    address: str
    link: Link


@dataclass(frozen=True)
class Plan:
    """One virtual cluster: nodes around a switch, at which the driver's machine has an unshaped port too."""

    prefix: str
    """Begins the name of all that belongs to it on this machine."""
    subnet: int
    """Index in SUBNETS."""
    nodes: tuple[Node, ...]

    @property
    def network(self) -> IPv4Network:
        return SUBNETS[self.subnet]

    @property
    def switch(self) -> str:
        """The namespace with the bridge: apart, so that the host's firewall and other clusters' names do not matter."""
        return f"{self.prefix}-sw"

    @property
    def driver(self) -> str:
        """Address at which the nodes reach this machine."""
        return str(self.network[254])


def prefix_of(study: str, pid: int, started: int) -> str:
    """Ten characters (a device's name has at most 15) that no other study's or process's cluster has."""
    return "rd" + hashlib.sha256(f"{study}\0{pid}\0{started}".encode()).hexdigest()[:8]


def make_plan(prefix: str, subnet: int, nodes: int, link: Link, slow_node: Mapping[int, Link] | None = None) -> Plan:
    """The cluster of `nodes` nodes; `slow_node`: links of single nodes, by number. Raises UserError."""
    if not 1 <= nodes <= MOST_NODES:
        raise UserError(f"cluster.nodes={nodes}: a virtual cluster takes 1 to {MOST_NODES}")
    others = dict(slow_node or {})
    if unknown := [number for number in others if not 0 <= number < nodes]:
        raise UserError(f"cluster.slow_node={unknown[0]}: no such node; choices: 0 to {nodes - 1}")
    for one in (link, *others.values()):
        _check(one)
    network = SUBNETS[subnet]
    made = (Node(f"{prefix}-n{k}", str(network[k + 1]), others.get(k, link)) for k in range(nodes))
    return Plan(prefix, subnet, tuple(made))


def up_commands(plan: Plan) -> list[tuple[str, ...]]:
    """Commands that make the cluster, in order. Devices are born inside their namespaces: none is seen outside."""
    switch = plan.switch
    words = [
        ("ip", "netns", "add", switch),
        ("ip", "netns", "exec", switch, "sh", "-c", NO_IPV6),
        ("ip", "-n", switch, "link", "add", "br0", "type", "bridge"),
        ("ip", "-n", switch, "link", "set", "br0", "up"),
        ("ip", "link", "add", plan.prefix, "type", "veth", "peer", "name", "driver", "netns", switch),
        ("ip", "-n", switch, "link", "set", "driver", "master", "br0", "up"),
        ("ip", "address", "add", f"{plan.driver}/{plan.network.prefixlen}", "dev", plan.prefix),
        ("ip", "link", "set", plan.prefix, "up"),
    ]
    for number, node in enumerate(plan.nodes):
        words += _node_commands(node, switch, f"n{number}", plan.network.prefixlen)
    return words


def script(commands: Sequence[Sequence[str]]) -> str:
    """Shell text that runs the commands and stops at the first that fails, whose line is then the last with `+`."""
    return "\n".join(["set -ex", *(shlex.join(words) for words in commands)])


def hosts_text(plan: Plan) -> str:
    """The nodes' /etc/hosts."""
    lines = ["127.0.0.1 localhost", f"{plan.driver} driver", *(f"{node.address} {node.name}" for node in plan.nodes)]
    return "\n".join(lines) + "\n"


def enter_text(plan: Plan, hosts: str) -> str:
    """A program `enter NODE WORD…`: runs the words with the node's network, host name and hosts file (at `hosts`)."""
    names = "|".join(node.name for node in plan.nodes)
    inner = 'echo "$1" >/proc/sys/kernel/hostname; mount --bind "$0" /etc/hosts; shift; exec "$@"'
    return (
        "#!/bin/sh\n"
        f"case $1 in\n{names}) ;;\n"
        '*) echo "enter: $1: no node of this virtual cluster" >&2; exit 255 ;;\nesac\n'
        f'exec ip netns exec "$1" unshare --uts -- sh -euc {shlex.quote(inner)} {shlex.quote(hosts)} "$@"\n'
    )


def ssh_text(plan: Plan, enter: str) -> str:
    """A program that stands in for ssh where the host is a node, by name or address: for mpirun, horovodrun and hands.

    As sshd does, it hands the words, joined by spaces, to a shell.
    """
    cases = "".join(f"{node.name}|{node.address}) node={node.name} ;;\n" for node in plan.nodes)
    # Options that take a word, from ssh(1); ssh reads options after the host too.
    options = (
        "while :; do\n"
        "case ${1-} in\n"
        "--) shift; break ;;\n"
        "-[BbcDEeFIiJLlmOoPpQRSWw]) shift 2 ;;\n"
        "-*) shift ;;\n"
        "*) break ;;\nesac\ndone\n"
    )
    return (
        f"#!/bin/sh\n{options}host=${{1#*@}}\nshift\n{options}case $host in\n{cases}"
        '*) echo "ssh: $host: no node of this virtual cluster" >&2; exit 255 ;;\nesac\n'
        f'exec {shlex.quote(enter)} "$node" sh -c "$*"\n'
    )


def _check(link: Link) -> None:
    if link.gbps is not None and not 0.001 <= link.gbps <= 1000:
        raise UserError(f"cluster.link_gbps={link.gbps:g}: takes 0.001 to 1000 (Gb/s), or null for a link as it is")
    if link.latency_ms is not None and not 0 < link.latency_ms <= 10_000:
        raise UserError(f"cluster.link_latency_ms={link.latency_ms:g}: takes more than 0, up to 10000, or null")


def _node_commands(node: Node, switch: str, port: str, prefix_length: int) -> list[tuple[str, ...]]:
    name = node.name
    return [
        ("ip", "netns", "add", name),
        ("ip", "netns", "exec", name, "sh", "-c", NO_IPV6),
        ("ip", "link", "add", DEVICE, "netns", name, "type", "veth", "peer", "name", port, "netns", switch),
        ("ip", "-n", name, "address", "add", f"{node.address}/{prefix_length}", "dev", DEVICE),
        *_shape(name, DEVICE, node.link),
        # The other direction, at the switch's port; a delay belongs to one end only.
        *_shape(switch, port, Link(node.link.gbps)),
        ("ip", "-n", name, "link", "set", "lo", "up"),
        ("ip", "-n", name, "link", "set", DEVICE, "up"),
        ("ip", "-n", switch, "link", "set", port, "master", "br0", "up"),
    ]


def _shape(namespace: str, device: str, link: Link) -> list[tuple[str, ...]]:
    add = ("tc", "-n", namespace, "qdisc", "add", "dev", device)
    at: tuple[str, ...] = ("root",)
    words: list[tuple[str, ...]] = []
    if link.latency_ms is not None:
        # The limit, in packets: netem's own 1000 would drop what is merely on its way at 10 Gb/s.
        words.append((*add, "root", "handle", "1:", "netem", "delay", f"{link.latency_ms:g}ms", "limit", "100000"))
        at = ("parent", "1:1")
    if link.gbps is not None:
        bits = round(link.gbps * 1e9)
        burst = max(LEAST_BURST, round(bits / 8 * BURST_S))
        rate = ("rate", f"{bits}bit", "burst", f"{burst}b", "latency", f"{QUEUE_S * 1e3:g}ms")
        words.append((*add, *at, "handle", "10:", "tbf", *rate))
    return words
