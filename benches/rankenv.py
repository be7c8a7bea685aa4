"""Who am I, before anything is joined: rank and local rank from whatever launcher started this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

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


def _first(names: tuple[str, ...], env: Mapping[str, str]) -> int:
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), 0)
