"""What can start ranks here: torchrun and horovodrun of an interpreter, and which mpirun."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benches.errors import UserError
from launchers.spec import Mpi
from launchers.supervise import json_line, last_line, output

PROBE_LIMIT_S = 60.0
"""For one question to an interpreter or an mpirun; a cold network file system is slow."""

MPIS = "Open MPI 4 or later, MPICH"
OPEN_MPI = re.compile(r"\((?:Open MPI|OpenRTE)\) (\d+)(\.\S+)")
HYDRA = re.compile(r"^HYDRA build details:\s+Version:\s+(\S+)", re.MULTILINE)
SONAMES = {"openmpi4": 40, "openmpi5": 40, "mpich": 12}
"""Version of each MPI's ABI, as its library's file name ends."""
LIBMPI = "MPI4PY_LIBMPI"
"""Names the library that mpi4py's wheels (4.1 or later) load."""
INTEL = re.compile(r"Intel\(R\) MPI Library.*?Version (\S+)")

# Looks for files instead of importing: torch alone takes seconds.
PROBE = """
import sys
sys.path = [folder for folder in sys.path if folder]  # a file in the user's folder may bear the name of any module
import importlib.util, json, pathlib
def files(package, pattern):
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return [str(path) for folder in folders or [] for path in pathlib.Path(folder).glob(pattern)]
print(json.dumps({"torch": files("torch", "distributed/run.py"), "horovod": files("horovod", "runner/launch.py"),
                  "libraries": files("horovod", "torch/mpi_lib*.so"), "mpi4py": files("mpi4py", "__init__.py")}))
"""


@dataclass(frozen=True)
class Packages:
    """What an interpreter's environment holds."""

    torch: bool
    horovod: bool
    mpi4py: bool
    libraries: tuple[str, ...]
    """Horovod's libraries for torch, which are linked to an MPI where they were built with one."""


class Tools:
    """What can start ranks, for any interpreter. Each is looked at once, when it is first asked for."""

    def __init__(self) -> None:
        self._packages: dict[str, Packages] = {}
        self._mpis: dict[str, Mpi] = {}

    def packages(self, python: str) -> Packages:
        """What this interpreter's environment holds. Raises UserError where it does not run."""
        if python not in self._packages:
            self._packages[python] = _ask(python)
        return self._packages[python]

    def horovodrun(self, python: str) -> tuple[str, ...]:
        """The words that start horovodrun of this interpreter."""
        script = _beside(python, "horovodrun")
        return (script,) if script else (python, "-m", "horovod.runner.launch")

    def mpi(self, python: str) -> Mpi:
        """The MPI that Horovod is linked to, else mpirun on the PATH, else beside the interpreter.

        Raises UserError where there is none, or one whose flags are not known.
        """
        if python not in self._mpis:
            program = next(_mpiruns(python, self.packages(python)), None)
            if program is None:
                raise UserError(f"transport=mpi: no mpirun on the PATH or beside {python}; choices: {MPIS}")
            _, text = output([program, "--version"], limit_s=PROBE_LIMIT_S)
            self._mpis[python] = parse_mpi(program, text)
        return self._mpis[python]


def parse_mpi(program: str, text: str) -> Mpi:
    """The MPI that says `text` of its version. Raises UserError for one whose flags are not known."""
    if found := OPEN_MPI.search(text):
        major, version = int(found[1]), found[1] + found[2]
        if major < 4:
            raise UserError(f"mpirun={program}: Open MPI {version} is too old; choices: {MPIS}")
        return Mpi(program, "openmpi4" if major == 4 else "openmpi5", version)
    if found := HYDRA.search(text):
        return Mpi(program, "mpich", found[1])
    if found := INTEL.search(text):
        raise UserError(f"mpirun={program}: Intel MPI {found[1]} is not among the choices: {MPIS}")
    first = next(iter(text.strip().splitlines()), "")
    raise UserError(f"mpirun={program}: its --version says {first!r}, none of the choices: {MPIS}")


def libmpi(mpi: Mpi) -> str | None:
    """The library of this mpirun; None where it is not beside it (the system's loader then knows it)."""
    prefix, name = Path(mpi.program).parent.parent, f"libmpi.so.{SONAMES[mpi.flavour]}"
    multiarch = str(sysconfig.get_config_var("MULTIARCH") or "")
    folders = (prefix / "lib", prefix / "lib64", prefix / "lib" / multiarch)
    return next((str(folder / name) for folder in folders if (folder / name).exists()), None)


def linked_mpirun(text: str) -> str | None:
    """The mpirun that belongs to the libmpi in what ldd says; None where none is named, or where no mpirun is there."""
    found = re.search(r"^\s*libmpi\S* => (/.+) \(0x", text, re.MULTILINE)
    program = Path(os.path.normpath(found[1])).parent.parent / "bin" / "mpirun" if found else None
    return str(program) if program and os.access(program, os.X_OK) else None


def _mpiruns(python: str, packages: Packages) -> Iterator[str]:
    for library in packages.libraries[:1]:
        if program := linked_mpirun(output(["ldd", library], limit_s=PROBE_LIMIT_S)[1]):
            yield program
    yield from filter(None, (shutil.which("mpirun"), _beside(python, "mpirun")))


def _beside(python: str, name: str) -> str | None:
    # Not resolved: the interpreter of a virtual environment is a link, and its scripts stand beside the link.
    interpreter = shutil.which(python) or python
    return shutil.which(name, path=str(Path(interpreter).parent))


def _ask(python: str) -> Packages:
    code, text = output([python, "-c", PROBE], limit_s=PROBE_LIMIT_S)
    found = json_line(text)
    if code != 0 or found is None:
        raise UserError(
            f"python={python}: does not run here ({last_line(text)}); choices: null, or a path such as {sys.executable}"
        )
    torch, horovod, mpi4py = (bool(found[name]) for name in ("torch", "horovod", "mpi4py"))
    return Packages(torch=torch, horovod=horovod, mpi4py=mpi4py, libraries=tuple(found["libraries"]))
