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
class Nccl:
    """The NCCL that torch uses, which Horovod shall use too."""

    folder: Path
    """Holds `include/nccl.h` and `lib/libnccl.so.2`."""
    version: str


def requirements(torch: TorchKit, shell: Mapping[str, str]) -> list[str]:
    """What pip must fetch to compile for this torch: nothing where CUDA_HOME names a toolkit.

    Raises UserError where there is no way.
    """
    if torch.cuda is None:
        raise UserError(f"--gpu: torch {torch.version} is a CPU build; install a CUDA build of it, or leave out --gpu")
    if shell.get("CUDA_HOME"):
        if not (Path(shell["CUDA_HOME"]) / "bin" / "nvcc").exists():
            raise UserError(f"CUDA_HOME={shell['CUDA_HOME']}: holds no bin/nvcc; unset it, or name a whole toolkit")
        return []
    major, minor = torch.cuda.split(".")[:2]
    if int(major) < 13:
        raise UserError(
            f"--gpu: pip has no nvcc for CUDA {torch.cuda}, which torch {torch.version} was built for; "
            "set CUDA_HOME to a toolkit of that version"
        )
    return [f"{package}=={major}.{minor}.*" for package in PACKAGES]


def find_nccl(site: Path, shell: Mapping[str, str]) -> Nccl:
    """torch's own NCCL: its pip package in `site`, or HOROVOD_NCCL_HOME. Raises UserError where there is none."""
    folder = Path(shell.get("HOROVOD_NCCL_HOME") or site / "nvidia" / "nccl")
    header = folder / "include" / "nccl.h"
    if not header.exists():
        raise UserError(
            f"--gpu: {header} is missing; install the nvidia-nccl package that this torch needs, "
            "or set HOROVOD_NCCL_HOME to the NCCL that it uses"
        )
    numbers = dict(re.findall(r"^#define\s+NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text(), re.MULTILINE))
    return Nccl(folder, ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH")))


def flavour(torch: TorchKit, nccl: Nccl) -> str:
    """Of a build with NCCL, in words."""
    return f"nccl {nccl.version}, CUDA {torch.cuda}, compute capabilities {','.join(map(str, torch.arches))}"


def assemble(work: Path, tools: Path, nccl: Nccl, torch: TorchKit, shell: Mapping[str, str]) -> dict[str, str]:
    """Variables that make the build one for NCCL, with CUDA_HOME's toolkit or one laid out in `work` from `tools`."""
    home = shell.get("CUDA_HOME") or str(lay_out(work / "cuda", sorted((tools / "nvidia").glob("cu*"))))
    libraries = lay_out(work / "nccl", [nccl.folder])
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": home,
        "CUDA_HOME": home,
        "CUDAToolkit_ROOT": home,
        "HOROVOD_NCCL_INCLUDE": str(libraries / "include"),
        "HOROVOD_NCCL_LIB": str(libraries / "lib64"),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(map(str, torch.arches)),
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
