"""What a launcher is given and what it gives back. Pure values: nothing here starts a process."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Of a variable that a shell takes."""
SECRETS = "RINGDUEL_SECRETS"
"""Variable of a pod that names those which it has from secrets, a comma between."""
MpiFlavour = Literal["openmpi4", "openmpi5", "mpich"]


def without(names: Iterable[str]) -> tuple[str, ...]:
    """Words before a command that take these variables from it; none for no names."""
    words = tuple(word for name in names for word in ("-u", name))
    return ("env", *words) if words else ()


@dataclass(frozen=True)
class Mpi:
    """An mpirun whose flags are known."""

    program: str
    """Path of mpirun."""
    flavour: MpiFlavour
    """What its flags are those of; openmpi5 stands for later ones too."""
    version: str
    """As it says itself, such as 5.0.11."""


@dataclass(frozen=True)
class LaunchSpec:
    """One set of rank processes to start."""

    python: str
    """Interpreter of the ranks; torchrun and horovodrun are taken from its environment."""
    args: tuple[str, ...]
    """What each rank runs, after the interpreter: ("-m", "benches.worker", "case.yaml", "--out", …)."""
    nodes: int
    ranks_per_node: int
    cwd: str
    """Absolute path of the folder in which the command is started."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that every rank must see, over those inherited."""
    hidden: tuple[str, ...] = ()
    """Variables of this shell that must stand in no command line, where a launcher would write them all into one."""
    yield_when_idle: bool = False
    """MPI: give up the core while waiting."""
    as_root: bool = False
    """Open MPI refuses to start as root unless told."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def words(self) -> tuple[str, ...]:
        """What each rank runs, interpreter included."""
        return (self.python, *self.args)


@dataclass(frozen=True)
class Command:
    """A command as one types it: variables, then words."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def text(self) -> str:
        """A line that a POSIX shell runs as it stands."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        line = " ".join([*assignments, shlex.join(self.argv)])
        return f"(cd {shlex.quote(self.cwd)} && {line})" if self.cwd else line
