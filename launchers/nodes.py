"""torchrun, horovodrun and mpirun over several nodes, with the flags of each: pure command text."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from launchers.horovodrun import restore
from launchers.remote import Ssh
from launchers.spec import Command, LaunchSpec, Mpi, without
from launchers.torchrun import agent_options

FANOUT = Path(__file__).with_name("fanout.py")
FIRST_PORT, PORTS = 20000, 10000
"""Where rendezvous take place: below the range from which Linux gives out ports (32768 and up)."""


class Nodes(Protocol):
    """The nodes of one launch, and how a program gets there."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Name or address of each node by which all others reach it; the first holds rank 0."""

    @property
    def token(self) -> str:
        """A hexadecimal text of at least 8 digits, another for each launch."""

    @property
    def ssh(self) -> Ssh:
        """What mpirun and horovodrun reach the other nodes with."""

    @property
    def nic(self) -> str | None:
        """Network device of every node; null: what each library picks."""

    @property
    def mca(self) -> tuple[tuple[str, str], ...]:
        """Open MPI's parameters that this kind of cluster needs."""

    @property
    def first(self) -> tuple[str, ...]:
        """Words before mpirun and horovodrun, which start where the driver is, or on the first node."""

    def on(self, node: int, words: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[str, ...]:
        """Words that run `words` on that node, in `folder`, with these variables."""


def fanout(lines: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Words that run all these commands side by side, and end them together."""
    return (sys.executable, "-S", "-I", str(FANOUT), *(shlex.join(words) for words in lines))


def port(token: str) -> int:
    """Where this launch's ranks meet on the first node; a port in use ends the launch with an error that says so."""
    return FIRST_PORT + int(token[:8], 16) % PORTS


def direct(spec: LaunchSpec, nodes: Nodes) -> Command:
    """One process by itself on the first node."""
    env = variables(spec, nodes)
    return Command(fanout([nodes.on(0, spec.words, env, spec.cwd)]), env, spec.cwd)


def torchrun(spec: LaunchSpec, nodes: Nodes) -> Command:
    """One agent on each node."""
    env = variables(spec, nodes)
    agents = [nodes.on(k, (*_agent(spec, nodes, k), *spec.words), env, spec.cwd) for k in range(spec.nodes)]
    return Command(fanout(agents), env, spec.cwd)


def horovodrun(spec: LaunchSpec, nodes: Nodes, program: Sequence[str]) -> Command:
    """horovodrun with its gloo controller (Horovod 0.28.1). `program`: the words that start it."""
    spec = replace(spec, env=variables(spec, nodes))
    remote = spec.nodes > 1
    words = (
        *nodes.first,
        # It writes all that it was given into the command for other hosts, where every user reads it.
        *without(spec.hidden),
        *program,
        "--gloo",
        "--disable-cache",
        *("-np", str(spec.world_size)),
        *("-H", _slots(spec, nodes.hosts)),
        # One node alone runs on the loopback device, and no other is accepted.
        *(("--network-interfaces", nodes.nic) if nodes.nic and remote else ()),
        *(("--ssh-port", str(nodes.ssh.port)) if nodes.ssh.port else ()),
        *(("--ssh-identity-file", nodes.ssh.identity_file) if nodes.ssh.identity_file else ()),
    )
    # It writes its own folder unquoted into the command for other hosts (gloo_run.py): that one has to be harmless.
    inner = ("sh", "-c", 'cd -- "$0" && exec "$@"', spec.cwd)
    return Command((*words, *inner, *restore(spec), *spec.words), spec.env, "/")


def mpirun(spec: LaunchSpec, nodes: Nodes, mpi: Mpi) -> Command:
    """Ranks are bound to nothing, in order of the nodes."""
    env = variables(spec, nodes)
    if mpi.flavour == "mpich":
        flags = mpich(spec, nodes.hosts, ("-launcher", "ssh", "-launcher-exec", nodes.ssh.program), nodes.nic)
        extra = {"HYDRA_LAUNCHER_EXTRA_ARGS": " ".join(nodes.ssh.options)}
        return Command((*nodes.first, mpi.program, *flags, *spec.words), {**extra, **env}, spec.cwd)
    agent = "plm_rsh" if mpi.flavour == "openmpi4" else "plm_ssh"
    daemons = {f"{agent}_agent": nodes.ssh.program, f"{agent}_args": " ".join(nodes.ssh.options)}
    flags = openmpi(spec, nodes.hosts, mpi, env, daemons, nodes.nic, nodes.mca)
    return Command((*nodes.first, mpi.program, *flags, *spec.words), env, spec.cwd)


def openmpi(
    spec: LaunchSpec,
    hosts: Sequence[str],
    mpi: Mpi,
    env: Mapping[str, str],
    daemons: Mapping[str, str],
    nic: str | None,
    mca: Sequence[tuple[str, str]] = (),
) -> tuple[str, ...]:
    """Flags of Open MPI's mpirun. daemons: parameters of what starts its daemons on the other hosts."""
    old = mpi.flavour == "openmpi4"
    mapping = ("slot", "--oversubscribe") if old else ("slot:OVERSUBSCRIBE",)
    flag, device = ("--mca", "oob_tcp_if_include") if old else ("--prtemca", "prte_if_include")
    chosen = ((flag, device, nic), ("--mca", "btl_tcp_if_include", nic)) if nic else ()
    return (
        *(("--allow-run-as-root",) if spec.as_root else ()),
        *("-np", str(spec.world_size)),
        *("--host", _slots(spec, hosts)),
        *("--bind-to", "none"),
        *("--map-by", *mapping),
        *(word for name, value in daemons.items() for word in (flag, name, value)),
        *(word for words in chosen for word in words),
        *(word for name, value in mca for word in ("--mca", name, value)),
        *("--mca", "mpi_yield_when_idle", str(int(spec.yield_when_idle))),
        *(word for name in sorted(env) for word in ("-x", name)),
    )


def mpich(spec: LaunchSpec, hosts: Sequence[str], daemons: Sequence[str], nic: str | None) -> tuple[str, ...]:
    """Flags of MPICH's mpirun. daemons: those that say how it starts its daemons on the other hosts."""
    return (
        *("-np", str(spec.world_size)),
        *("-rmk", "user", *daemons),
        *("-hosts", _slots(spec, hosts)),
        *(("-iface", nic) if nic else ()),
        *("-bind-to", "none"),
        "-genvall",
    )


def variables(spec: LaunchSpec, nodes: Nodes) -> dict[str, str]:
    """The ranks' variables, with the network device for gloo and NCCL where one is chosen; the user's own win."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if nodes.nic else ()
    return {**{name: str(nodes.nic) for name in names}, **spec.env}


def _agent(spec: LaunchSpec, nodes: Nodes, node: int) -> tuple[str, ...]:
    return (
        *(spec.python, "-m", "torch.distributed.run"),
        f"--nnodes={spec.nodes}",
        # Static: ranks go by the number of the node. c10d sorts agents by their addresses as texts, 10 before 2.
        "--rdzv-backend=static",
        f"--rdzv-endpoint={nodes.hosts[0]}:{port(nodes.token)}",
        f"--rdzv-id={nodes.token}",
        f"--node-rank={node}",
        f"--local-addr={nodes.hosts[node]}",
        *agent_options(spec),
    )


def _slots(spec: LaunchSpec, hosts: Sequence[str]) -> str:
    return ",".join(f"{host}:{spec.ranks_per_node}" for host in hosts[: spec.nodes])
