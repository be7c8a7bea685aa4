"""Combinations of settings that a library forbids or silently ignores, refused before anything starts.

Sources: horovod/common/operations.cc and horovod/torch/optimizer.py (0.28.1), torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

from benches.errors import UserError
from benches.spec import Case, ClusterSpec, DdpSettings, HorovodSettings


def refuse(case: Case) -> None:
    """Raise UserError where a setting of this case could not be in force."""
    _refuse_capturable(case)
    if case.cuda_graphs:
        _refuse_graphs(case)
    if case.ddp is not None:
        _refuse_ddp(case.ddp, str(case.transport))
        # torch's reducer fails on it: an internal assertion in the second pass.
        if case.ddp.static_graph and case.accumulation_steps > 1:
            raise UserError("ddp.static_graph=true: torch must reduce its first pass; takes accumulation_steps=1")
        if case.compile:
            _refuse_small_buckets(case.ddp)
    if case.horovod is not None:
        _refuse_controller(case.horovod, str(case.transport))
        _refuse_groups(case.horovod)
        _refuse_affinity(case.horovod, case.cluster)
        _refuse_tuned(case.horovod)
        _refuse_nccl_only(case.horovod, str(case.transport))
        _refuse_several_nodes_only(case.horovod, case)


def _refuse_capturable(case: Case) -> None:
    if case.optimizer.capturable and (case.optimizer.name == "sgd" or case.device != "cuda"):
        where = f"optimizer.name={case.optimizer.name} device={case.device}"
        raise UserError(f"optimizer.capturable=true: only adam and adamw on CUDA heed it; here {where}")


def _refuse_graphs(case: Case) -> None:
    """What cannot be captured: see torch's notes on CUDA graphs."""
    if case.engine == "horovod":
        raise UserError(
            "cuda_graphs=true: Horovod's background thread agrees on each message with the other ranks over the host, "
            "which no graph can hold; for DDP and local only"
        )
    if case.device != "cuda":
        raise UserError(f"cuda_graphs=true: needs device=cuda; here device={case.device}")
    if case.transport not in (None, "nccl"):
        raise UserError(f"cuda_graphs=true: gradients go through the host with transport={case.transport}; takes nccl")
    if case.precision == "fp16":
        raise UserError("cuda_graphs=true: the gradient scaler of precision=fp16 waits for the host; takes fp32, bf16")
    if case.optimizer.name != "sgd" and not case.optimizer.capturable:
        raise UserError(f"cuda_graphs=true: optimizer.name={case.optimizer.name} needs optimizer.capturable=true")
    if case.ddp is not None and case.ddp.find_unused_parameters:
        raise UserError("cuda_graphs=true: ddp.find_unused_parameters=true asks the host in each step; keep one")
    if case.ddp is not None and case.ddp.comm_hook == "powersgd":
        raise UserError("cuda_graphs=true: ddp.comm_hook=powersgd decides on the host in each step; keep one")


def _refuse_ddp(settings: DdpSettings, transport: str) -> None:
    if settings.find_unused_parameters and settings.static_graph:
        raise UserError("ddp.find_unused_parameters=true: ddp.static_graph=true finds them itself, once; keep one")
    if settings.powersgd_rank != 1 and settings.comm_hook != "powersgd":
        raise UserError(f"ddp.powersgd_rank={settings.powersgd_rank}: needs ddp.comm_hook=powersgd")
    # Its callbacks start reductions of their own, over gloo in another order on each rank once there are two buckets.
    if settings.comm_hook == "powersgd" and transport != "nccl":
        raise UserError(
            f"ddp.comm_hook=powersgd: torch's hook needs transport=nccl; choices over {transport}: fp16, bf16"
        )
    if settings.is_high_priority_stream and transport != "nccl":
        raise UserError(f"ddp.is_high_priority_stream=true: needs transport=nccl; {transport} has no such stream")


def _refuse_small_buckets(settings: DdpSettings) -> None:
    """torch splits a compiled graph at the edges of buckets, and fails where the first, 1 MiB, is not the smallest."""
    if settings.bucket_cap_mb is not None and settings.bucket_cap_mb < 1:
        raise UserError(
            f"ddp.bucket_cap_mb={settings.bucket_cap_mb:g}: "
            "with compile=true torch takes none below 1, its first bucket"
        )


def _refuse_controller(settings: HorovodSettings, transport: str) -> None:
    # 0.28.1 prefers gloo's operations once anything uses gloo, and gives them no connection under MPI's controller.
    if settings.controller not in (None, transport) and transport != "nccl":
        raise UserError(
            f"horovod.controller={settings.controller}: Horovod cannot pair it with transport={transport}; "
            f"choices: {transport}, null"
        )


def _refuse_groups(settings: HorovodSettings) -> None:
    factor = settings.gradient_predivide_factor
    if settings.groups is not None and factor != 1:
        raise UserError(f"horovod.gradient_predivide_factor={factor:g}: ignored where horovod.groups is set; keep one")
    if settings.disable_group_fusion and settings.groups is None:
        raise UserError(
            "horovod.disable_group_fusion=true: without horovod.groups it turns all fusion off; "
            "horovod.fusion_threshold_mb=0 does that"
        )


def _refuse_tuned(settings: HorovodSettings) -> None:
    defaults = HorovodSettings()
    searched = ("fusion_threshold_mb", "cycle_time_ms") if settings.autotune else ("autotune_steps_per_sample",)
    for name in searched:
        value = getattr(settings, name)
        if value != getattr(defaults, name):
            remedy = (
                "horovod.autotune=true searches it itself; keep one" if settings.autotune else "needs autotune=true"
            )
            raise UserError(f"horovod.{name}={value:g}: {remedy}")


def _refuse_affinity(settings: HorovodSettings, cluster: ClusterSpec) -> None:
    cores = settings.thread_affinity
    if cores is not None and len(cores.split(",")) != cluster.ranks_per_node:
        raise UserError(
            f"horovod.thread_affinity={cores}: names {len(cores.split(','))} core(s) for "
            f"cluster.ranks_per_node={cluster.ranks_per_node}; one for each rank of a node"
        )


def _refuse_nccl_only(settings: HorovodSettings, transport: str) -> None:
    if transport == "nccl":
        return
    defaults = HorovodSettings()
    for name in ("num_nccl_streams", "enable_async_completion", "batch_d2d_memcopies"):
        value = getattr(settings, name)
        if value != getattr(defaults, name):
            raise UserError(f"horovod.{name}={str(value).lower()}: only NCCL heeds it; transport is {transport}")


def _refuse_several_nodes_only(settings: HorovodSettings, case: Case) -> None:
    for name in ("hierarchical_allreduce", "torus_allreduce"):
        if getattr(settings, name) and (case.transport != "nccl" or case.cluster.nodes == 1):
            where = f"transport={case.transport} cluster.nodes={case.cluster.nodes}"
            raise UserError(f"horovod.{name}=true: Horovod turns it off but for NCCL on several nodes; here {where}")
    if settings.hierarchical_allreduce and settings.controller != "mpi":
        raise UserError("horovod.hierarchical_allreduce=true: needs horovod.controller=mpi, its way between nodes")
    if settings.hierarchical_allreduce and settings.torus_allreduce:
        raise UserError("horovod.torus_allreduce=true: horovod.hierarchical_allreduce=true goes before it; keep one")
