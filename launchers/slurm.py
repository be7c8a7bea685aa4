"""Slurm: the script of one allocation in which a whole study runs, and the steps in it. Pure text."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from benches.errors import UserError
from benches.spec import Count, Frozen
from launchers import nodes
from launchers.spec import Command, LaunchSpec, Mpi, MpiFlavour
from launchers.torchrun import agent_options

RENDEZVOUS = Path(__file__).with_name("rendezvous.py")
WORD = re.compile(r"[A-Za-z0-9_.,:+*&|()\[\]@=/%-]+")
"""Values of #SBATCH lines; no quotes, spaces or `#`, which sbatch reads in its own way."""
NOTICE_S = 120
"""Slurm tells the driver so long before the time is up; it then ends its launches and writes their records."""
ASKED = ("partition", "account", "qos", "gres", "constraint", "time", "reservation")
HOROVOD = {
    "HOROVOD_RANK": "SLURM_PROCID",
    "HOROVOD_LOCAL_RANK": "SLURM_LOCALID",
    "HOROVOD_CROSS_RANK": "SLURM_NODEID",
    "HOROVOD_HOSTNAME": "SLURMD_NODENAME",
}
"""What horovodrun tells a rank of itself (horovod/runner/gloo_run.py), and where srun says it."""
NIC = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "OMPI_MCA_btl_tcp_if_include")
"""Variables that name the network device to gloo in torch, NCCL, gloo in Horovod, and Open MPI."""
SHARED = ("--overlap", "--mem=0")
"""Contestants of a heat are steps that run at once: none takes cores or memory away from another."""

Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[tuple[Text, ...], Meta(description="a list of texts")]


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
    """Cores of a node, which each step takes all of; null: all that Slurm gives."""
    exclusive: bool = True
    """Take whole nodes: others' jobs on them would disturb the clock."""
    modules: Texts = ()
    """Environment modules that the script loads, in order."""
    setup: Texts = ()
    """Lines of shell that the script runs before the driver, as they stand (activate …)."""
    container: Text | None = None
    """Image in which every rank runs, by path or address as the runtime takes it. null: none."""
    container_runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """pyxis: enroot through srun's own options; apptainer: `apptainer exec` before each rank."""
    container_mounts: Texts = ()
    """Folders to mount in the image, `outside:inside`."""


@dataclass(frozen=True)
class SlurmNodes:
    """The nodes of an allocation, for one launch."""

    hosts: tuple[str, ...]
    """In Slurm's order: the first has number 0 (`scontrol show hostnames`)."""
    cpus: int
    """Of each node."""
    token: str
    """Of this launch: a hexadecimal text of at least 8 digits."""
    driver: str
    """Address of the driver's machine as the nodes reach it."""
    asked: SlurmSpec
    nic: str | None = None
    """Network device of every node; null: what each library picks."""


def gpus(gres: str | None) -> int:
    """GPUs of a node that has these generic resources: `gpu:8`, `gpu:a100:4`, `gpu`, in a list with others."""
    count = 0
    for entry in (gres or "").split(","):
        name, *rest = entry.split(":")
        if name == "gpu":
            count += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return count


def batch_script(slurm: SlurmSpec, name: str, count: int, driver: Sequence[str], folder: str) -> str:
    """The script of sbatch: one allocation of `count` nodes, in which the driver (its words) runs on the first.

    Submitted again after a time-out it goes on with what is missing, as the driver does. Raises UserError.
    """
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in _allocation(slurm, name, count)),
            "",
            *(f"module load {shlex.quote(module)}" for module in slurm.modules),
            *slurm.setup,
            f"cd -- {shlex.quote(folder)} || exit 2",
            # In the shell's place: Slurm's signals reach the driver itself.
            f"exec {shlex.join(driver)}",
            "",
        ]
    )


def direct_step(spec: LaunchSpec, site: SlurmNodes) -> Command:
    """One process by itself on the first node."""
    return Command((*_step(spec, site, 1), *spec.words), _env(spec, site), spec.cwd)


def torchrun_step(spec: LaunchSpec, site: SlurmNodes) -> Command:
    """One torchrun on each node, started by srun."""
    agent = (
        f"--nnodes={spec.nodes}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={site.hosts[0]}:{nodes.port(site.token)}",
        f"--rdzv-id={site.token}",
        *agent_options(spec),
    )
    # Only there does a task learn the number of its node.
    place = '--node-rank="$SLURM_NODEID" --local-addr="$SLURMD_NODENAME"'
    start = ("sh", "-c", f'exec "$0" -m torch.distributed.run {place} "$@"', spec.python)
    return Command((*_step(spec, site, 1), *start, *agent, *spec.words), _env(spec, site), spec.cwd)


def mpi_step(spec: LaunchSpec, site: SlurmNodes, flavour: MpiFlavour) -> Command:
    """Ranks that talk over MPI, started by srun itself; Slurm needs its plugin for PMIx (MPICH: PMI-2)."""
    plugin = "pmi2" if flavour == "mpich" else "pmix"
    # As mpirun's own option; always explicit.
    env = {"OMPI_MCA_mpi_yield_when_idle": str(int(spec.yield_when_idle)), **_env(spec, site)}
    return Command((*_step(spec, site, spec.ranks_per_node, plugin), *spec.words), env, spec.cwd)


def horovod_gloo_step(spec: LaunchSpec, site: SlurmNodes) -> Command:
    """Horovod's ranks with the gloo controller, by srun, without ssh: the rendezvous is ours, not horovodrun's."""
    serve = (sys.executable, "-S", "-I", str(RENDEZVOUS), site.driver, str(spec.nodes), str(spec.ranks_per_node))
    exports = " ".join(f'{name}="${value}"' for name, value in HOROVOD.items())
    start = ("sh", "-c", f'export {exports} && exec "$0" "$@"')
    sizes = {"SIZE": spec.world_size, "LOCAL_SIZE": spec.ranks_per_node, "CROSS_SIZE": spec.nodes}
    env = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **{f"HOROVOD_{name}": str(size) for name, size in sizes.items()},
        **_env(spec, site),
    }
    return Command((*serve, *_step(spec, site, spec.ranks_per_node), *start, *spec.words), env, spec.cwd)


def mpirun(spec: LaunchSpec, site: SlurmNodes, mpi: Mpi) -> Command:
    """mpirun, whose daemons srun starts: for a Slurm that has no PMIx."""
    env, shared = _env(spec, site), " ".join(SHARED)
    if mpi.flavour == "mpich":
        flags = nodes.mpich(spec, site.hosts, ("-launcher", "slurm"), site.nic)
        return Command((mpi.program, *flags, *spec.words), {"HYDRA_LAUNCHER_EXTRA_ARGS": shared, **env}, spec.cwd)
    daemons = {"plm": "slurm", "plm_slurm_args": shared}
    flags = nodes.openmpi(spec, site.hosts, mpi, env, daemons, site.nic)
    return Command((mpi.program, *flags, *spec.words), env, spec.cwd)


def each_node(words: Sequence[str], site: SlurmNodes, mpi: str = "none") -> tuple[str, ...]:
    """A step that runs the words once on each node; its lines begin with the node's number. mpi: Slurm's plugin."""
    return (*_srun(len(site.hosts), 1, site, site.cpus), f"--mpi={mpi}", "--label", *_inside(site.asked), *words)


def by_node(text: str) -> dict[int, list[str]]:
    """Lines of each node, by its number, in what a step of `each_node` wrote."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        if match := re.match(r" *(\d+): (.*)", line):
            found.setdefault(int(match[1]), []).append(match[2])
    return found


def check_pmix(code: int | None, text: str) -> None:
    """Raise UserError unless a step of `each_node` with PMIx ended well. code, text: its status, and what it wrote."""
    if code != 0:
        why = next((line for line in text.splitlines() if "error:" in line), "no answer")
        raise UserError(
            f"cluster.launcher=srun: Slurm has no pmix that works ({why}); install its library (Debian: libpmix2, and "
            "libpmix-dev with the link that Slurm loads), or take cluster.launcher=mpirun"
        )


def check_partition(slurm: SlurmSpec, text: str) -> None:
    """`text`: what `sinfo --noheader --format=%R` says. Raises UserError for a partition that is not among these."""
    known = sorted(set(text.split()))
    for name in (slurm.partition or "").split(",") if slurm.partition else ():
        if name not in known:
            raise UserError(f"cluster.slurm.partition={name}: unknown; choices: {', '.join(known) or 'none'}")


def _allocation(slurm: SlurmSpec, name: str, count: int) -> list[str]:
    asked = {
        "job-name": f"ringduel-{name}",
        "nodes": str(count),
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
        "--output=slurm-%j.out",
        "--error=slurm-%j.err",
    ]


def _step(spec: LaunchSpec, site: SlurmNodes, tasks_per_node: int, mpi: str = "none") -> tuple[str, ...]:
    """The words before those of a task."""
    container = site.asked.container and site.asked.container_runtime == "pyxis"
    folder = (f"--container-workdir={spec.cwd}",) if container else ()
    # One number for all launchers: what eight ranks leave over of 36 cores is not torchrun's alone.
    cpus = min(site.cpus, max(1, site.cpus // spec.ranks_per_node) * spec.ranks_per_node)
    return (*_srun(spec.nodes, tasks_per_node, site, cpus), *folder, f"--mpi={mpi}", *_inside(site.asked))


def _srun(count: int, tasks_per_node: int, site: SlurmNodes, cpus: int) -> tuple[str, ...]:
    """Contestants of a heat are steps that run at once: each gets so many cores of each node, and shares them."""
    asked = site.asked
    gres = (f"--gres={asked.gres}", "--gpu-bind=none") if asked.gres else ()
    return (
        "srun",
        f"--nodes={count}",
        f"--ntasks={count * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        # Ranks in order of the nodes, whatever a SLURM_DISTRIBUTION in the shell says.
        "--distribution=block",
        # The same nodes for every contestant of a pair.
        f"--nodelist={','.join(site.hosts[:count])}",
        *SHARED,
        f"--cpus-per-task={max(1, cpus // tasks_per_node)}",
        # Affinity is ours to set, in the ranks, and the same under every launcher.
        "--cpu-bind=none",
        *gres,
        "--kill-on-bad-exit=1",
        "--export=ALL",
        *(_pyxis(asked) if asked.container_runtime == "pyxis" else ()),
    )


def _pyxis(asked: SlurmSpec) -> tuple[str, ...]:
    if asked.container is None:
        return ()
    mounts = (f"--container-mounts={','.join(asked.container_mounts)}",) if asked.container_mounts else ()
    return (f"--container-image={asked.container}", *mounts)


def _inside(asked: SlurmSpec) -> tuple[str, ...]:
    """Words that take what follows into the image, where srun does not."""
    if asked.container is None or asked.container_runtime == "pyxis":
        return ()
    nv = ("--nv",) if gpus(asked.gres) else ()
    mounts = (word for one in asked.container_mounts for word in ("--bind", one))
    return ("apptainer", "exec", *nv, *mounts, asked.container)


def _env(spec: LaunchSpec, site: SlurmNodes) -> Mapping[str, str]:
    """The ranks' variables, with the network device where one is chosen; the user's own win."""
    return {**{name: site.nic for name in NIC if site.nic}, **spec.env}
