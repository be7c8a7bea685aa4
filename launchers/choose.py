"""Which launcher serves a case, and its command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benches.errors import UserError
from benches.spec import Case
from launchers import direct, horovodrun, mpirun, nodes, slurm, torchrun
from launchers.nodes import Nodes
from launchers.slurm import SlurmNodes
from launchers.spec import NAME, Command, LaunchSpec
from launchers.tools import LIBMPI, Tools, libmpi

LAUNCHERS = {
    "local": "direct",
    "ddp/gloo": "torchrun",
    "ddp/mpi": "mpirun",
    "ddp/nccl": "torchrun",
    "horovod/gloo": "horovodrun",
    # horovodrun --mpi writes Open MPI 4's flags, and Open MPI 5 does not start with them.
    "horovod/mpi": "mpirun",
    "horovod/nccl": "horovodrun",
}
"""By cell, the launcher that can start it: it alone gives the ranks what that engine joins with."""


def launcher(case: Case) -> str:
    """Name of the launcher that serves this case. Raises UserError where the one asked for cannot."""
    if case.cluster.name == "slurm":
        return _in_slurm(case)
    # Whoever talks over MPI must be started by it, whatever carries the gradients.
    asked, serving = case.cluster.launcher, "mpirun" if case.uses_mpi else LAUNCHERS[case.cell]
    if asked not in ("auto", serving):
        raise UserError(f"cluster.launcher={asked}: cannot start {case.cell}; choices: auto, {serving}")
    return serving


def _in_slurm(case: Case) -> str:
    asked = case.cluster.launcher
    if asked not in ("auto", "srun", "mpirun"):
        raise UserError(f"cluster.launcher={asked}: srun starts the steps in Slurm; choices: auto, srun, mpirun")
    # One choice for all contestants: mpirun stands in where ranks talk over MPI, and has no part in the others.
    return "mpirun" if asked == "mpirun" and case.uses_mpi else "srun"


def command(case: Case, spec: LaunchSpec, tools: Tools, on: Nodes | SlurmNodes | None = None) -> Command:
    """The command that starts the ranks of `case` on these nodes, None: on this machine.

    Raises UserError where something that it needs is missing.
    """
    name = launcher(case)
    _check_text(spec)
    if isinstance(on, SlurmNodes):
        return _step(case, spec, tools, on)
    _check_packages(case, spec.python, tools)
    spec = _with_libmpi(case, spec, tools)
    return COMMANDS[name](spec, tools) if on is None else ON_NODES[name](spec, on, tools)


def _step(case: Case, spec: LaunchSpec, tools: Tools, on: SlurmNodes) -> Command:
    """What the nodes hold is asked on them, before; this may be another machine, and ranks may run in an image."""
    if not case.uses_mpi:
        return STEPS[case.engine](spec, on)
    if launcher(case) == "mpirun" and on.asked.container is not None:
        raise UserError(
            f"cluster.launcher=mpirun: its ranks would run outside of cluster.slurm.container={on.asked.container}; "
            "take cluster.launcher=srun"
        )
    mpi, spec = tools.mpi(spec.python), _with_libmpi(case, spec, tools)
    return slurm.mpirun(spec, on, mpi) if launcher(case) == "mpirun" else slurm.mpi_step(spec, on, mpi.flavour)


STEPS: dict[str, Callable[[LaunchSpec, SlurmNodes], Command]] = {
    "local": slurm.direct_step,
    "ddp": slurm.torchrun_step,
    "horovod": slurm.horovod_gloo_step,
}
COMMANDS: dict[str, Callable[[LaunchSpec, Tools], Command]] = {
    "direct": lambda spec, _: direct.command(spec),
    "torchrun": lambda spec, _: torchrun.command(spec),
    "horovodrun": lambda spec, tools: horovodrun.command(spec, tools.horovodrun(spec.python)),
    "mpirun": lambda spec, tools: mpirun.command(spec, tools.mpi(spec.python)),
}
ON_NODES: dict[str, Callable[[LaunchSpec, Nodes, Tools], Command]] = {
    "direct": lambda spec, on, _: nodes.direct(spec, on),
    "torchrun": lambda spec, on, _: nodes.torchrun(spec, on),
    "horovodrun": lambda spec, on, tools: nodes.horovodrun(spec, on, tools.horovodrun(spec.python)),
    "mpirun": lambda spec, on, tools: nodes.mpirun(spec, on, tools.mpi(spec.python)),
}


def _check_packages(case: Case, python: str, tools: Tools) -> None:
    packages = tools.packages(python)
    if not packages.torch:
        raise UserError(f"python={python}: its environment has no torch; install torch there, or name another")
    if case.engine == "horovod" and not packages.horovod:
        raise UserError(f"engine=horovod: {python} has no Horovod; run: ringduel install-horovod")
    if case.cell == "ddp/mpi" and not packages.mpi4py:
        raise UserError(f"transport=mpi: DDP over MPI needs mpi4py; run: {python} -m pip install 'mpi4py>=4.1'")


def _with_libmpi(case: Case, spec: LaunchSpec, tools: Tools) -> LaunchSpec:
    """With the variable that has mpi4py load the libmpi of the mpirun, and not the first that it finds."""
    library = libmpi(tools.mpi(spec.python)) if case.cell == "ddp/mpi" else None
    return replace(spec, env={LIBMPI: library, **spec.env}) if library else spec


def _check_text(spec: LaunchSpec) -> None:
    for name, value in spec.env.items():
        if not NAME.fullmatch(name):
            raise UserError(
                f"cluster.env={name!r}: no name of a variable; takes letters, digits (not first), underscores"
            )
        if "\0" in value:
            raise UserError(f"cluster.env.{name}={value!r}: a variable cannot hold a zero byte")
