"""Slurm: the script of one allocation in which a whole study runs, and the steps in it. Pure text."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from benches.errors import UserError
from benches.spec import Count, Frozen
from launchers.nodes import port
from launchers.spec import Command, LaunchSpec, MpiFlavour

RENDEZVOUS = Path(__file__).with_name("rendezvous.py")
WORD = re.compile(r"[A-Za-z0-9_.,:+*&|()\[\]@=/%-]+")
"""Values of #SBATCH lines; no quotes, spaces or `#`, which sbatch reads in its own way."""
NOTICE_S = 120
"""Slurm tells the driver so long before the time is up; it then ends its launches and writes their records."""
ASKED = ("partition", "account", "qos", "gres", "constraint", "time", "reservation")
HOROVOD = {
    "HOROVOD_RANK": "SLURM_PROCID",
    "HOROVOD_SIZE": "SLURM_NTASKS",
    "HOROVOD_LOCAL_RANK": "SLURM_LOCALID",
    "HOROVOD_LOCAL_SIZE": "SLURM_NTASKS_PER_NODE",
    "HOROVOD_CROSS_RANK": "SLURM_NODEID",
    "HOROVOD_CROSS_SIZE": "SLURM_NNODES",
    "HOROVOD_HOSTNAME": "SLURMD_NODENAME",
}
"""What horovodrun tells a rank (horovod/runner/gloo_run.py), and where srun says it."""
PMIX = re.compile(r"\bpmix")

Text = Annotated[str, Meta(min_length=1)]


class Container(Frozen, frozen=True, kw_only=True):
    """An image in which every rank runs."""

    runtime: Literal["pyxis", "apptainer"]
    """pyxis: enroot through srun's own options; apptainer: `apptainer exec` before each rank."""
    image: Text
    """Path or address of the image, as the runtime takes it."""
    mounts: tuple[Text, ...] = ()
    """Folders to mount, `outside:inside`."""


class SlurmSpec(Frozen, frozen=True, kw_only=True):
    """What one asks of Slurm. A null value leaves the site's default."""

    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    gres: Text | None = None
    """Generic resources of each node, such as gpu:8."""
    constraint: Text | None = None
    """Features that the nodes must have."""
    time: Text | None = None
    """Wall-clock limit of the allocation, such as 2:00:00."""
    reservation: Text | None = None
    cpus_per_node: Count | None = None
    """Cores of a node, which each step takes all of; null: the script asks Slurm."""
    exclusive: bool = True
    """Take whole nodes: others' jobs on them would disturb the clock."""
    modules: tuple[Text, ...] = ()
    """Environment modules that the script loads, in order."""
    setup: tuple[Text, ...] = ()
    """Lines of shell that the script runs before the driver, as they stand (activate …)."""
    container: Container | None = None


@dataclass(frozen=True)
class Allocation:
    """The nodes that Slurm gave, as the driver in them sees it."""

    hosts: tuple[str, ...]
    """In Slurm's order: the first has number 0 (`scontrol show hostnames`)."""
    cpus: int
    """Of each node (SLURM_CPUS_ON_NODE)."""
    token: str
    """Of this launch: a hexadecimal text."""


def batch_script(slurm: SlurmSpec, name: str, nodes: int, driver: Sequence[str], folder: str) -> str:
    """The script of sbatch: one allocation of `nodes` nodes, in which the driver (its words) runs on the first.

    Submitted again after a time-out it goes on with what is missing, as the driver does. Raises UserError.
    """
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in _allocation(slurm, name, nodes)),
            "",
            *(f"module load {shlex.quote(module)}" for module in slurm.modules),
            *slurm.setup,
            f"cd -- {shlex.quote(folder)} || exit 2",
            # In the shell's place: Slurm's signals reach the driver itself.
            f"exec {shlex.join(driver)}",
            "",
        ]
    )


def torchrun_step(spec: LaunchSpec, slurm: SlurmSpec, site: Allocation) -> Command:
    """One torchrun on each node, started by srun."""
    agent = (
        f"--nnodes={spec.nodes}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={site.hosts[0]}:{port(site.token)}",
        f"--rdzv-id={site.token}",
        f"--nproc-per-node={spec.ranks_per_node}",
        "--max-restarts=0",
        "--no-python",
    )
    # Only there does a task learn the number of its node.
    start = ("sh", "-c", 'exec "$0" -m torch.distributed.run --node-rank="$SLURM_NODEID" "$@"', spec.python)
    words = (*_srun(spec, slurm, site, tasks_per_node=1), "--mpi=none", *_inside(slurm), *start, *agent, *spec.words)
    return Command(words, spec.env, spec.cwd)


def mpi_step(spec: LaunchSpec, slurm: SlurmSpec, site: Allocation, flavour: MpiFlavour) -> Command:
    """Ranks that talk over MPI, started by srun itself; Slurm needs its plugin for PMIx (MPICH: PMI-2)."""
    plugin = "--mpi=pmi2" if flavour == "mpich" else "--mpi=pmix"
    # As mpirun's own option; always explicit.
    env = {"OMPI_MCA_mpi_yield_when_idle": str(int(spec.yield_when_idle)), **spec.env}
    words = (*_srun(spec, slurm, site, spec.ranks_per_node), plugin, *_inside(slurm), *spec.words)
    return Command(words, env, spec.cwd)


def horovod_gloo_step(spec: LaunchSpec, slurm: SlurmSpec, site: Allocation) -> Command:
    """Horovod's ranks with the gloo controller, by srun, without ssh: the rendezvous is ours, not horovodrun's."""
    serve = (sys.executable, "-S", "-I", str(RENDEZVOUS), site.hosts[0], str(spec.nodes), str(spec.ranks_per_node))
    exports = " ".join(f'{name}="${value}"' for name, value in HOROVOD.items())
    start = ("sh", "-c", f'export {exports} && exec "$0" "$@"')
    env = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", **spec.env}
    step = (*_srun(spec, slurm, site, spec.ranks_per_node), "--mpi=none", *_inside(slurm), *start, *spec.words)
    return Command((*serve, *step), env, spec.cwd)


def check_pmix(text: str) -> None:
    """`text`: what `srun --mpi=list` says. Raises UserError where Slurm has no PMIx."""
    if not PMIX.search(text):
        raise UserError(
            "cluster.launcher=srun: this Slurm has no pmix; install libpmix2 with Slurm's pmix plugin (slurm-wlm's "
            "mpi_pmix.so), or take cluster.launcher=mpirun"
        )


def check_partition(slurm: SlurmSpec, text: str) -> None:
    """`text`: what `sinfo --noheader --format=%R` says. Raises UserError for a partition that is not among these."""
    known = sorted(set(text.split()))
    for name in (slurm.partition or "").split(",") if slurm.partition else ():
        if name not in known:
            raise UserError(f"cluster.slurm.partition={name}: unknown; choices: {', '.join(known) or 'none'}")


def _allocation(slurm: SlurmSpec, name: str, nodes: int) -> list[str]:
    asked = {
        "job-name": f"ringduel-{name}",
        "nodes": str(nodes),
        **{key: value for key in ASKED if (value := getattr(slurm, key)) is not None},
    }
    for key, value in asked.items():
        if not WORD.fullmatch(value):
            raise UserError(f"cluster.slurm.{key}={value!r}: takes letters, digits and _.,:+*&|()[]@=/%- only")
    return [
        *(f"--{key}={value}" for key, value in asked.items()),
        *(("--exclusive",) if slurm.exclusive else ()),
        "--mem=0",
        # One task, the driver; each step takes the nodes as it needs them.
        "--ntasks-per-node=1",
        *((f"--cpus-per-task={slurm.cpus_per_node}",) if slurm.cpus_per_node else ()),
        f"--signal=B:TERM@{NOTICE_S}",
        # Preempted, it waits for other nodes and goes on there with launches that are missing.
        "--requeue",
        "--open-mode=append",
    ]


def _srun(spec: LaunchSpec, slurm: SlurmSpec, site: Allocation, tasks_per_node: int) -> tuple[str, ...]:
    """Contestants of a heat are steps that run at once: each gets all of each node, and shares it."""
    container = slurm.container
    gpus = (f"--gres={slurm.gres}", "--gpu-bind=none") if slurm.gres else ()
    return (
        "srun",
        f"--nodes={spec.nodes}",
        f"--ntasks={spec.nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        # Ranks in order of the nodes, whatever a SLURM_DISTRIBUTION in the shell says.
        "--distribution=block",
        # The same nodes for every contestant of a pair.
        f"--nodelist={','.join(site.hosts[: spec.nodes])}",
        "--overlap",
        "--mem=0",
        f"--cpus-per-task={max(1, site.cpus // tasks_per_node)}",
        # Affinity is ours to set, in the ranks, and the same under every launcher.
        "--cpu-bind=none",
        *gpus,
        "--kill-on-bad-exit=1",
        "--export=ALL",
        *(_pyxis(container, spec.cwd) if container and container.runtime == "pyxis" else ()),
    )


def _pyxis(container: Container, folder: str) -> tuple[str, ...]:
    mounts = (f"--container-mounts={','.join(container.mounts)}",) if container.mounts else ()
    return (f"--container-image={container.image}", *mounts, f"--container-workdir={folder}")


def _inside(slurm: SlurmSpec) -> tuple[str, ...]:
    """Words that take what follows into the image, where srun does not."""
    container = slurm.container
    if container is None or container.runtime == "pyxis":
        return ()
    gpus = ("--nv",) if "gpu" in (slurm.gres or "") else ()
    return (
        "apptainer",
        "exec",
        *gpus,
        *(word for one in container.mounts for word in ("--bind", one)),
        container.image,
    )
