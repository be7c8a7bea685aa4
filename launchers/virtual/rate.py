"""What the links of a virtual cluster really carry while all nodes send at once. Rates in 10**9 bit/s."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benches.errors import UserError
from launchers.nodes import fanout
from launchers.supervise import last_line, output
from launchers.virtual.cluster import Cluster

TRAFFIC = Path(__file__).with_name("traffic.py")
PORT = 5201
"""Nobody else's: nothing of ours runs on the nodes yet."""
PAYLOAD = 1448 / 1514
"""Share of a full Ethernet frame that is payload, with TCP's timestamps; tbf counts whole frames."""
ENOUGH = 0.95
"""A link that carries less than this share of what it could is not the limit: the host is."""
START_S = 0.5
START_NODE_S = 0.2
"""Until all processes are there, and for each: on one busy core."""


@dataclass(frozen=True)
class Carried:
    """What came in at each node."""

    gbps: tuple[float, ...]
    """Payload, by node; what arrives over TCP in a stream."""
    link_gbps: tuple[float | None, ...]
    """What was asked of each node's incoming stream: the slower of its own link and its sender's."""

    @property
    def short(self) -> tuple[int, ...]:
        """Nodes whose link carries less than it was shaped to: this host cannot do more."""
        pairs = enumerate(zip(self.gbps, self.link_gbps, strict=True))
        return tuple(node for node, (got, asked) in pairs if asked is not None and got < asked * PAYLOAD * ENOUGH)


def measure(cluster: Cluster, seconds: float = 1.0) -> Carried | None:
    """Let each node send to the next, all at once; None for one node alone, which has no link to anybody.

    Raises UserError where no answer comes.
    """
    nodes = cluster.plan.nodes
    if len(nodes) == 1:
        return None
    start = time.monotonic() + START_S + START_NODE_S * len(nodes)
    words = [_words(cluster, number, start, seconds) for number in range(len(nodes))]
    code, text = output(fanout(words), limit_s=start - time.monotonic() + seconds + 20)
    if code != 0:
        raise UserError(f"cluster=virtual: its links could not be tried: {last_line(text)}")
    return Carried(_rates(text, len(nodes)), asked(cluster))


def asked(cluster: Cluster) -> tuple[float | None, ...]:
    """Rate that each node's incoming stream should have, its sender being the node before it; None: unshaped."""
    rates = [node.link.gbps for node in cluster.plan.nodes]
    pairs = [[rate for rate in (rates[k - 1], rates[k]) if rate is not None] for k in range(len(rates))]
    return tuple(min(pair, default=None) for pair in pairs)


def _words(cluster: Cluster, number: int, start: float, seconds: float) -> tuple[str, ...]:
    nodes = cluster.plan.nodes
    own, peer = nodes[number], nodes[(number + 1) % len(nodes)]
    program = (cluster.enter, own.name, sys.executable, "-S", "-I", str(TRAFFIC))
    return (*program, str(number), own.address, peer.address, str(PORT), repr(start), str(seconds))


def _rates(text: str, nodes: int) -> tuple[float, ...]:
    answers = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    by_node: dict[int, float] = {answer["node"]: answer["bytes_per_s"] * 8e-9 for answer in answers}
    return tuple(by_node[node] for node in range(nodes))
