"""Which launcher serves a case, and its command."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from benches.errors import UserError
from benches.spec import Case
from launchers import direct, horovodrun, mpirun, nodes, torchrun
from launchers.nodes import Nodes
from launchers.spec import Command, LaunchSpec
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

CLUSTERS = ("local", "virtual", "hosts", "kubernetes")
"""Kinds of cluster that they serve."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def launcher(case: Case) -> str:
    """Name of the launcher that serves this case. Raises UserError where the one asked for cannot."""
    if case.cluster.name not in CLUSTERS:
        raise UserError(f"cluster.name={case.cluster.name}: no launcher serves it yet; choices: {', '.join(CLUSTERS)}")
    # Whoever talks over MPI must be started by it, whatever carries the gradients.
    asked, serving = case.cluster.launcher, "mpirun" if case.uses_mpi else LAUNCHERS[case.cell]
    if asked not in ("auto", serving):
        raise UserError(f"cluster.launcher={asked}: cannot start {case.cell}; choices: auto, {serving}")
    return serving


def command(case: Case, spec: LaunchSpec, tools: Tools, on: Nodes | None = None) -> Command:
    """The command that starts the ranks of `case` on these nodes, None: on this machine.

    Raises UserError where something that it needs is missing.
    """
    name = launcher(case)
    _check_text(spec)
    _check_packages(case, spec.python, tools)
    spec = _with_libmpi(case, spec, tools)
    return COMMANDS[name](spec, tools) if on is None else ON_NODES[name](spec, on, tools)


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
