"""A CUDA toolkit without a system-wide one: nvcc, headers and libraries of NVIDIA's pip packages in one folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benches.errors import UserError
from benches.install.plan import TorchKit

PACKAGES = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
"""From CUDA 13 on these hold the whole compiler, under `nvidia/cu13`; earlier ones lack nvcc itself."""


@dataclass(frozen=True)
class CudaPlan:
    """What a build with NCCL needs."""

    flavour: str
    """Versions of NCCL and CUDA, and the compute capabilities, in words."""
    nccl: Path
    """Folder of the NCCL that torch uses, which Horovod shall use too: `include/nccl.h`, `lib/libnccl.so.2`."""
    packages: tuple[str, ...]
    """What pip fetches to compile with; none where `home` names a toolkit."""
    home: Path | None
    """A toolkit of the user's, from CUDA_HOME."""
    arches: tuple[int, ...]
    """Compute capabilities × 10."""


def plan_gpu(torch: TorchKit, site: Path, shell: Mapping[str, str]) -> CudaPlan:
    """Raises UserError, which says what is lacking and the remedy, where NCCL cannot be built for this torch.

    `site`: where the pip packages of this environment lie.
    """
    if torch.cuda is None:
        raise UserError(f"--gpu: torch {torch.version} is a CPU build; install a CUDA build of it, or leave out --gpu")
    home = Path(shell["CUDA_HOME"]) if shell.get("CUDA_HOME") else None
    if home and not (home / "bin" / "nvcc").exists():
        raise UserError(f"CUDA_HOME={home}: holds no bin/nvcc; unset it, or name a whole toolkit")
    packages = () if home else _packages(torch.version, torch.cuda)
    nccl = Path(shell.get("HOROVOD_NCCL_HOME") or site / "nvidia" / "nccl")
    arches = ",".join(map(str, torch.arches))
    flavour = f"nccl {_nccl_version(nccl)}, CUDA {torch.cuda}, compute capabilities {arches}"
    return CudaPlan(flavour, nccl, packages, home, torch.arches)


def _packages(torch: str, cuda: str) -> tuple[str, ...]:
    major, minor = cuda.split(".")[:2]
    if int(major) < 13:
        raise UserError(
            f"--gpu: pip has no nvcc for CUDA {cuda}, which torch {torch} was built for; "
            "set CUDA_HOME to a toolkit of that version"
        )
    return tuple(f"{package}=={major}.{minor}.*" for package in PACKAGES)


def _nccl_version(folder: Path) -> str:
    header = folder / "include" / "nccl.h"
    if not header.exists():
        raise UserError(
            f"--gpu: {header} is missing; install the nvidia-nccl package that this torch needs, "
            "or set HOROVOD_NCCL_HOME to the NCCL that it uses"
        )
    numbers = dict(re.findall(r"^#define\s+NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text(), re.MULTILINE))
    return ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))


def assemble(work: Path, tools: Path, cuda: CudaPlan) -> dict[str, str]:
    """Variables that make the build one for NCCL, with the user's toolkit or one laid out in `work` from `tools`."""
    home = str(cuda.home or lay_out(work / "cuda", sorted((tools / "nvidia").glob("cu*"))))
    libraries = lay_out(work / "nccl", [cuda.nccl])
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": home,
        "CUDA_HOME": home,
        "CUDAToolkit_ROOT": home,
        "HOROVOD_NCCL_INCLUDE": str(libraries / "include"),
        "HOROVOD_NCCL_LIB": str(libraries / "lib64"),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(map(str, cuda.arches)),
    }


def lay_out(toolkit: Path, parts: Iterable[Path]) -> Path:
    """Make `toolkit` from links into `parts`, folders with `bin`, `nvvm`, `include` and `lib`; earlier ones win.

    Libraries get their unversioned names too: linkers look for `libnccl.so`, pip packages hold `libnccl.so.2`.
    """
    for part in parts:
        for name in ("bin", "nvvm", "include", "lib"):
            target = toolkit / ("lib64" if name == "lib" else name)
            target.mkdir(parents=True, exist_ok=True)
            for entry in sorted((part / name).glob("*")):
                _link(target / entry.name, entry)
                if ".so." in entry.name:
                    _link(target / f"{entry.name.split('.so.')[0]}.so", entry)
    return toolkit


def _link(link: Path, entry: Path) -> None:
    if not link.exists():
        link.symlink_to(entry.resolve())
