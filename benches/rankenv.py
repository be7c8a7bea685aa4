"""Who am I, before anything is joined: rank and local rank from whatever launcher started this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from launchers.spec import SECRETS

# torchrun, horovodrun, Open MPI, MPICH and Intel MPI, PMIx, Slurm; the first that is set counts. torchrun stands first
# since it is the innermost where it is started through an MPI or Slurm.
RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANK = (
    "LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)


def rank(env: Mapping[str, str] = os.environ) -> int:
    """Rank in the job; 0 outside every launcher."""
    return _first(RANK, env)


def local_rank(env: Mapping[str, str] = os.environ) -> int:
    """Rank among the processes of this node; 0 outside every launcher."""
    return _first(LOCAL_RANK, env)


def node(env: Mapping[str, str] = os.environ) -> str:
    """Name of this node: Slurm's, which may run several on one machine, else the host's."""
    return env.get("SLURMD_NODENAME") or socket.gethostname()


def take_secrets(env: MutableMapping[str, str] = os.environ, pod: Path = Path("/proc/1/environ")) -> None:
    """Take over what this pod has from secrets: whom ssh starts in it gets none of it, under whatever launcher.

    pod: variables that the pod's first process was started with, as Linux shows them.
    """
    try:
        lines = pod.read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    for name in filter(None, given.get(SECRETS, "").split(",")):
        if name in given:
            env.setdefault(name, given[name])


def _first(names: tuple[str, ...], env: Mapping[str, str]) -> int:
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), 0)
