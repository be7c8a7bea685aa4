"""A real Slurm of two nodes on this machine: Debian's packages, network namespaces as nodes, all files in one folder.

The host is the login node and runs the controller. Everything is ended by its own process number.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemons import PATH, absent, daemon, run, until

from launchers.virtual.cluster import Cluster, virtual_cluster
from launchers.virtual.plan import Link

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "scancel")
UP_S = 60.0
CORES = 2
"""That each node says it has."""


@dataclass(frozen=True)
class Slurm:
    """A Slurm that is up."""

    folder: Path
    nodes: tuple[str, ...]
    env: Mapping[str, str]
    """Of a shell on the login node."""

    def run(self, *words: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Words on the login node."""
        return run(words, self.env, limit_s)

    def ringduel(self, *words: str, limit_s: float = 200) -> subprocess.CompletedProcess[str]:
        """This project, by the interpreter of the tests."""
        return self.run(sys.executable, "-m", "benches", *words, limit_s=limit_s)

    def logs(self) -> str:
        """What its daemons said last."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))


def missing() -> str | None:
    """Why there can be no Slurm here; None: nothing."""
    return absent(PROGRAMS, "slurm-wlm, munge, libpmix2, libpmix-dev")


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Two nodes, one partition, for as long as the context lasts."""
    with virtual_cluster("slurm", 2, Link()) as cluster, contextlib.ExitStack() as daemons:
        conf = folder / "slurm.conf"
        conf.write_text(conf_text(folder, cluster))
        # It is not looked for: entering a node leaves none, and no plugin of ours uses it.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        daemons.enter_context(daemon(["munged", "--foreground", "--force", *_munge(folder)], folder / "munged.log"))
        until((folder / "munge").exists, UP_S, lambda: "munged has no socket")
        daemons.enter_context(daemon(["slurmctld", "-D", "-f", str(conf)], folder / "slurmctld.log"))
        for node in cluster.plan.nodes:
            # PMIx's folder of a step has one name on all nodes, and no second node can make it.
            (folder / f"tmp-{node.name}").mkdir()
            words = [cluster.enter, node.name, "slurmd", "-D", "-N", node.name, "-f", str(conf)]
            daemons.enter_context(daemon(words, folder / f"{node.name}.log"))
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        names = tuple(node.name for node in cluster.plan.nodes)
        up = Slurm(folder, names, {**env, **OPEN_MPI, "PATH": PATH, "SLURM_CONF": str(conf)})
        try:
            idle = ["sinfo", "-h", "-o", "%T"]
            until(lambda: up.run(*idle).stdout.split() == ["idle"], UP_S, lambda: f"nodes are not up\n{up.logs()}")
            yield up
        finally:
            up.run("scancel", "--full", *up.run("squeue", "-h", "-o", "%i").stdout.split())


FOREIGN = ("SLURM", "SBATCH", "HOROVOD_", "OMPI_", "PMI")
"""Variables of whoever started the tests that would reach the ranks."""


OPEN_MPI = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
"""Nodes of one kernel could share memory; those of a cluster cannot."""


def conf_text(folder: Path, cluster: Cluster) -> str:
    """slurm.conf. Each node counts the cores of this machine as its own."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    nodes = "\n".join(
        f"NodeName={node.name} NodeAddr={node.address} CPUs={CORES} State=UNKNOWN" for node in cluster.plan.nodes
    )
    return f"""ClusterName=ringduel
SlurmctldHost={socket.gethostname()}({cluster.plan.driver})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PropagateResourceLimits=NONE
ReturnToService=2
MpiDefault=none
MailProg=/bin/true
KillWait=60
{nodes}
PartitionName=debug Nodes=ALL Default=YES State=UP
"""


def _munge(folder: Path) -> Sequence[str]:
    """Options of munged: a key and a socket of its own."""
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    names = {"key-file": key.name, "socket": "munge", "pid-file": "munged.pid", "seed-file": "munged.seed"}
    return [f"--{option}={folder / name}" for option, name in names.items()]
