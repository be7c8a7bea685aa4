"""Which launcher serves a case, and its command."""

from __future__ import annotations

import re
from collections.abc import Callable

from benches.errors import UserError
from benches.spec import Case
from launchers import direct, horovodrun, mpirun, torchrun
from launchers.spec import Command, LaunchSpec
from launchers.tools import Tools

LAUNCHERS = {
    "local": "direct",
    "ddp/gloo": "torchrun",
    "ddp/nccl": "torchrun",
    "horovod/gloo": "horovodrun",
    # horovodrun --mpi writes Open MPI 4's flags, and Open MPI 5 does not start with them.
    "horovod/mpi": "mpirun",
    "horovod/nccl": "horovodrun",
}
"""By cell, the launcher that can start it: it alone gives the ranks what that engine joins with."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def launcher(case: Case) -> str:
    """Name of the launcher that serves this case. Raises UserError where the one asked for cannot."""
    if case.cluster.name != "local":
        raise UserError(f"cluster.name={case.cluster.name}: no launcher serves it yet; choices: local")
    asked, serving = case.cluster.launcher, LAUNCHERS[case.cell]
    if asked not in ("auto", serving):
        raise UserError(f"cluster.launcher={asked}: cannot start {case.cell}; choices: auto, {serving}")
    return serving


def command(case: Case, spec: LaunchSpec, tools: Tools) -> Command:
    """The command that starts the ranks of `case`. Raises UserError where something that it needs is missing."""
    make = COMMANDS[launcher(case)]
    _check_text(spec)
    _check_packages(case, spec.python, tools)
    return make(spec, tools)


COMMANDS: dict[str, Callable[[LaunchSpec, Tools], Command]] = {
    "direct": lambda spec, _: direct.command(spec),
    "torchrun": lambda spec, _: torchrun.command(spec),
    "horovodrun": lambda spec, tools: horovodrun.command(spec, tools.horovodrun(spec.python)),
    "mpirun": lambda spec, tools: mpirun.command(spec, tools.mpi(spec.python)),
}


def _check_packages(case: Case, python: str, tools: Tools) -> None:
    packages = tools.packages(python)
    if not packages.torch:
        raise UserError(f"python={python}: its environment has no torch; install torch there, or name another")
    if case.engine == "horovod" and not packages.horovod:
        raise UserError(f"engine=horovod: {python} has no Horovod; run: ringduel install-horovod")


def _check_text(spec: LaunchSpec) -> None:
    for name, value in spec.env.items():
        if not NAME.fullmatch(name):
            raise UserError(
                f"cluster.env={name!r}: no name of a variable; takes letters, digits (not first), underscores"
            )
        if "\0" in value:
            raise UserError(f"cluster.env.{name}={value!r}: a variable cannot hold a zero byte")
