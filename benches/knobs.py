"""Environment variables that set an engine's knob, or a rank's number, behind the configuration's back."""

from __future__ import annotations

from collections.abc import Mapping

from benches.errors import UserError
from benches.scrub import SECRET_WORDS
from launchers.spec import NAME, SECRETS

UNSET = ""
# Variable: the key to set instead; UNSET where no key stands for it yet. Horovod's own list: horovod/common/common.h
# (0.28.1). Those that only choose a network interface or a log level are the user's.
KNOBS = {
    "HOROVOD_FUSION_THRESHOLD": "horovod.fusion_threshold_mb",
    "HOROVOD_CYCLE_TIME": "horovod.cycle_time_ms",
    "HOROVOD_CACHE_CAPACITY": "horovod.cache_capacity",
    "HOROVOD_CPU_OPERATIONS": "transport",
    "HOROVOD_CONTROLLER": "horovod.controller",
    "HOROVOD_AUTOTUNE": "horovod.autotune",
    "HOROVOD_AUTOTUNE_LOG": UNSET,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": UNSET,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "horovod.autotune_steps_per_sample",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": UNSET,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": UNSET,
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "horovod.hierarchical_allreduce",
    "HOROVOD_HIERARCHICAL_ALLGATHER": UNSET,
    "HOROVOD_TORUS_ALLREDUCE": "horovod.torus_allreduce",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "horovod.batch_d2d_memcopies",
    "HOROVOD_NUM_NCCL_STREAMS": "horovod.num_nccl_streams",
    "HOROVOD_THREAD_AFFINITY": "horovod.thread_affinity",
    "HOROVOD_DISABLE_GROUP_FUSION": "horovod.disable_group_fusion",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "horovod.enable_async_completion",
    "HOROVOD_DYNAMIC_PROCESS_SETS": UNSET,
    "HOROVOD_MPI_THREADS_DISABLE": UNSET,
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": UNSET,
    "HOROVOD_ELASTIC": UNSET,
    "HOROVOD_TIMELINE": UNSET,
    "HOROVOD_TIMELINE_MARK_CYCLES": UNSET,
    "OMPI_MCA_mpi_yield_when_idle": "cluster.mpi_yield_when_idle",
    "TORCH_DISTRIBUTED_DEBUG": UNSET,
}
RANKS = ("RANK", "LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK")
"""What a rank asks first for its number (`rankenv`); torchrun or horovodrun alone gives each rank its own."""
KNOBS |= dict.fromkeys(RANKS, UNSET)
CARRIED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "OPENBLAS_CORETYPE")
CARRIED_PREFIXES = (
    *("NCCL_", "UCX_", "UCC_", "HCOLL_", "SHARP_", "FI_", "PSM2_", "RDMAV_", "IBV_", "OMPI_MCA_"),
    *("MPIR_CVAR_", "GLOO_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "MALLOC_"),
    *("TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_"),
)
"""What changes speed under an engine: from the user's shell it reaches every rank of every contestant alike. Launchers
differ in what they hand on to other hosts: mpirun what it is told by name, torchrun nothing, horovodrun everything."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Set for every rank from `cluster.threads_per_rank`, whatever the shell says."""


def is_secret(name: str) -> bool:
    """Whether a variable's name tells of a secret. A partition's key, NCCL_IB_PKEY, is none."""
    return any(word in name.upper().replace("PKEY", "") for word in SECRET_WORDS)


def carried(shell: Mapping[str, str]) -> dict[str, str]:
    """The variables of the user's shell that all ranks get, on whatever host; no secrets."""
    names = [name for name in shell if name in CARRIED or name.startswith(CARRIED_PREFIXES)]
    return {name: shell[name] for name in names if not is_secret(name)}


def hidden(shell: Mapping[str, str]) -> tuple[str, ...]:
    """Those that must not stand in a command line: secrets; and names that no shell takes, which would break one."""
    told = shell.get(SECRETS, "").split(",")
    return tuple(sorted(name for name in shell if name in told or is_secret(name) or not NAME.fullmatch(name)))


def refuse(shell: Mapping[str, str], cluster_env: Mapping[str, str]) -> None:
    """Raise UserError for a knob in the user's shell or in `cluster.env`, or for a secret there."""
    instead = {**KNOBS, **dict.fromkeys(THREADS, "cluster.threads_per_rank")}
    for name, value in cluster_env.items():
        if is_secret(name):
            raise UserError(
                f"cluster.env.{name}: a secret would stand in every record and process list; set it in a login's "
                "profile on each host, or by cluster.kubernetes.secrets"
            )
        if name in instead:
            remedy = f"set {instead[name]} instead" if instead[name] else "leave it out"
            raise UserError(f"cluster.env.{name}={value}: {_reason(name)}; {remedy}")
    for name, key in KNOBS.items():
        if name in shell:
            remedy = f"unset it and set {key} instead" if key else "unset it"
            raise UserError(f"{name}={shell[name]} (in your environment): {_reason(name)}; {remedy}")


def overridden(shell: Mapping[str, str]) -> list[str]:
    """Warnings on the user's variables that do not reach the ranks."""
    found = [f"{name}={shell[name]}" for name in THREADS if name in shell]
    return [f"{', '.join(found)} (in your environment): ranks get cluster.threads_per_rank instead"] if found else []


def _reason(name: str) -> str:
    if name in RANKS:
        return "each rank would take it for its own number"
    return "gives threads behind the study's back" if name in THREADS else "sets a knob behind the study's back"
