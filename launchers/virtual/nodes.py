"""The nodes of a virtual cluster for one launch; see `launchers.nodes.Nodes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launchers.remote import Ssh
from launchers.virtual.cluster import Cluster
from launchers.virtual.plan import DEVICE


@dataclass(frozen=True)
class VirtualNodes:
    """The first `count` nodes of a cluster that is up."""

    cluster: Cluster
    count: int
    token: str
    nic: str | None = DEVICE
    # UCX takes two namespaces of one kernel for one host, and would go through its memory.
    mca: tuple[tuple[str, str], ...] = (("pml", "ob1"), ("btl", "tcp,self"))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.address for node in self.cluster.plan.nodes[: self.count])

    @property
    def ssh(self) -> Ssh:
        return Ssh(self.cluster.ssh)

    @property
    def first(self) -> tuple[str, ...]:
        """On the first node, where our ssh leads the PATH: horovodrun takes no other program by name."""
        folder = self.cluster.ssh.rpartition("/")[0]
        return (self.cluster.enter, self.cluster.plan.nodes[0].name, "sh", "-c", 'PATH=$0:$PATH exec "$@"', folder)

    def on(self, node: int, words: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[str, ...]:
        """Variables and folder are those of the launch: entering a node changes neither."""
        return (self.cluster.enter, self.cluster.plan.nodes[node].name, *words)
