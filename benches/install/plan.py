"""What a build of Horovod depends on: the key of its wheel in the cache, its environment, and its record."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benches.errors import UserError
from benches.install.source import PATCH, VERSION, digest

STANDARD = re.compile(r"#error\s+C\+\+(\d+) or later")
"""What torch's `torch/csrc/api/include/torch/all.h` says to an older compiler."""
STANDARD_HEADER = Path("include/torch/csrc/api/include/torch/all.h")

DROPPED = re.compile(
    r"HOROVOD_|RINGDUEL_|CUDA|NCCL_|CCL_(ROOT|CONFIGURATION)$|ROCM_|NVCC_|MPI_HOME$"
    r"|(MAKEFLAGS|MFLAGS|MAKELEVEL|MAKEOVERRIDES|CMAKE_BUILD_PARALLEL_LEVEL)$"
)
"""Variables of the shell that would change what is built; compilers, search paths and proxies stay."""


@dataclass(frozen=True)
class TorchKit:
    """The installed torch, as far as Horovod's build depends on it."""

    version: str
    cuda: str | None
    """Version of CUDA that it was built for, such as 13.0; null for a CPU build."""
    folder: Path
    """Of the package; its headers are in `include`, its libraries in `lib`."""
    gpus: int = 0
    """How many it sees."""
    arches: tuple[int, ...] = ()
    """Compute capabilities × 10 to build kernels for: the visible GPUs', else all that torch was built for."""


@dataclass(frozen=True)
class Plan:
    """One wheel."""

    torch: str
    cxx_standard: int
    mpi: str
    """Flavour, version and, outside this environment, prefix."""
    flavour: str
    """cpu, or nccl with its version, CUDA's and the compute capabilities."""
    rpath: str
    """Where the extension looks for MPI, torch and NCCL; semicolons between."""
    horovod: str = VERSION
    patch_sha256: str = digest(PATCH)
    python: str = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"

    def key(self) -> str:
        """Folder of the wheel in the cache: readable, and different wherever a field is."""
        text = json.dumps(asdict(self), sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.horovod}-torch{self.torch}-{self.flavour.split()[0]}-{short}"

    def record(self, compiler: str) -> dict[str, Any]:
        """What the wheel carries about itself, as `horovod/ringduel.json`."""
        return {"key": self.key(), **asdict(self), "compiler": compiler, "transports": ["gloo", "mpi", *self._nccl()]}

    def _nccl(self) -> list[str]:
        return [] if self.flavour == "cpu" else ["nccl"]


def torch_kit() -> TorchKit:
    """Of the torch of this interpreter. Raises UserError where there is none."""
    try:
        import torch
    except ImportError as error:
        raise UserError(f"torch: not importable here ({error}); install it first, Horovod is built for it") from None
    gpus = torch.cuda.device_count()
    visible = {torch.cuda.get_device_capability(index) for index in range(gpus)}
    names = [f"sm_{major}{minor}" for major, minor in visible] or torch.cuda.get_arch_list()
    arches = sorted({int(name[3:]) for name in names if name[3:].isdigit()})
    return TorchKit(torch.__version__, torch.version.cuda, Path(torch.__file__).parent, gpus, tuple(arches))


def cxx_standard(torch: TorchKit) -> int:
    """The C++ standard that torch's own header asks for, such as 17. Raises UserError where it does not say."""
    header = torch.folder / STANDARD_HEADER
    found = STANDARD.search(header.read_text()) if header.exists() else None
    if found is None:
        raise UserError(f"{header}: does not say which C++ standard torch needs; Horovod cannot be built for it")
    return int(found[1])


def run_path(libraries: Iterable[Path], site: Path, prefix: Path) -> str:
    """Where the extension in `site` looks for `libraries`: relative for those under `prefix`, this environment.

    A cached wheel then works in the next environment too.
    """
    home = site / "horovod" / "torch"
    inside = {folder: folder.is_relative_to(prefix) for folder in libraries}
    return ";".join(
        f"$ORIGIN/{os.path.relpath(folder, home)}" if own else str(folder) for folder, own in inside.items()
    )


def jobs(cores: int, memory_mb: int) -> int:
    """Compilers at once: a core and 2 GiB each (torch's headers take up to 1.5)."""
    return max(1, min(cores, memory_mb // 2048))


def environment(
    shell: Mapping[str, str], plan: Plan, mpi: Path, tools: Path, make_jobs: int, gpu: Mapping[str, str]
) -> dict[str, str]:
    """All variables of the build.

    `mpi`: prefix of it. `tools`: folder of CMake, setuptools and patch_ng. `gpu`: what a build with NCCL adds.
    """
    kept = {name: value for name, value in shell.items() if not DROPPED.match(name)}
    path = os.pathsep.join([str(mpi / "bin"), kept.get("PATH", os.defpath)])
    return kept | {
        "PATH": path,
        "PYTHONPATH": os.pathsep.join([str(tools), *([kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else [])]),
        "PYTHONUNBUFFERED": "1",
        "MPI_HOME": str(mpi),
        "MAKEFLAGS": f"-j{make_jobs}",
        "RINGDUEL_CXX_STANDARD": str(plan.cxx_standard),
        "RINGDUEL_RPATH": plan.rpath,
        "HOROVOD_CMAKE": str(tools / "cmake" / "data" / "bin" / "cmake"),
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI": "1",
        **gpu,
    }


def cache(env: Mapping[str, str]) -> Path:
    """Folder of wheels, logs and the source archive: RINGDUEL_CACHE, else the user's cache, then ringduel/horovod."""
    base = env.get("RINGDUEL_CACHE") or env.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).expanduser().absolute() / "ringduel" / "horovod"
