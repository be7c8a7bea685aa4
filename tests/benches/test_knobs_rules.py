"""Knobs in the configuration: ranges, what a library forbids or ignores, samples of a step, a controller's launcher."""

from __future__ import annotations

import msgspec
import pytest
from composing import study

from analysis.marks import marks
from benches import preflight, provenance
from benches.errors import UserError
from benches.probe import Answer
from benches.spec import Case
from launchers import choose

DDP, HOROVOD, MPI = ("engine=ddp",), ("engine=horovod",), ("engine=horovod", "transport=mpi")
NCCL = ("engine=horovod", "transport=nccl")

REFUSED = {
    # Ranges and types.
    (*DDP, "accumulation_steps=0"): "accumulation_steps=0: takes a whole number of at least 1",
    (*DDP, "ddp.first_bucket_mb=0"): ("ddp.first_bucket_mb=0: takes a number above 0 and of at most 1048576, or null"),
    (*DDP, "ddp.comm_hook=fp8"): "ddp.comm_hook=fp8: choices: fp16, bf16, powersgd, null",
    (*DDP, "ddp.powersgd_rank=0"): ("ddp.powersgd_rank=0: takes a whole number of at least 1 and of at most 1000000"),
    (*DDP, "ddp.is_high_priority_stream=2"): "ddp.is_high_priority_stream=2: takes true or false",
    (*HOROVOD, "horovod.compression=bf16"): "horovod.compression=bf16: choices: none, fp16",
    (*HOROVOD, "horovod.controller=nccl"): "horovod.controller=nccl: choices: gloo, mpi, null",
    (*HOROVOD, "horovod.groups=0"): (
        "horovod.groups=0: takes a whole number of at least 1 and of at most 1000000, or null"
    ),
    (*HOROVOD, "horovod.gradient_predivide_factor=0"): "horovod.gradient_predivide_factor=0: takes a number above 0",
    (*HOROVOD, "horovod.num_nccl_streams=0"): (
        "horovod.num_nccl_streams=0: takes a whole number of at least 1 and of at most 1024"
    ),
    (*HOROVOD, "horovod.torus_allreduce=1"): "horovod.torus_allreduce=1: takes true or false",
    (*HOROVOD, "horovod.thread_affinity=a"): (
        "horovod.thread_affinity=a: takes core numbers by local rank, such as '2,3', or null"
    ),
    # The other engine's.
    (*DDP, "horovod.compression=fp16"): "horovod.compression=fp16: no contestant runs engine horovod",
    # What torch ignores.
    (*DDP, "ddp.find_unused_parameters=true", "ddp.static_graph=true"): (
        "ddp.find_unused_parameters=true: ddp.static_graph=true finds them itself, once; keep one"
    ),
    (*DDP, "ddp.static_graph=true", "accumulation_steps=2"): (
        "ddp.static_graph=true: torch must reduce its first pass; takes accumulation_steps=1"
    ),
    (*DDP, "compile=true", "ddp.bucket_cap_mb=0.5"): (
        "ddp.bucket_cap_mb=0.5: with compile=true torch takes none below 1, its first bucket"
    ),
    (*DDP, "ddp.powersgd_rank=4"): "ddp.powersgd_rank=4: needs ddp.comm_hook=powersgd",
    (*DDP, "ddp.comm_hook=powersgd"): (
        "ddp.comm_hook=powersgd: torch's hook needs transport=nccl; choices over gloo: fp16, bf16"
    ),
    (*DDP, "ddp.is_high_priority_stream=true"): (
        "ddp.is_high_priority_stream=true: needs transport=nccl; gloo has no such stream"
    ),
    ("study.contestants.ddp.ddp.powersgd_rank=4",): (
        "study.contestants.ddp.ddp.powersgd_rank=4: needs ddp.comm_hook=powersgd"
    ),
    # What Horovod forbids or ignores.
    (*MPI, "horovod.controller=gloo"): (
        "horovod.controller=gloo: Horovod cannot pair it with transport=mpi; choices: mpi, null"
    ),
    (*HOROVOD, "horovod.controller=mpi"): (
        "horovod.controller=mpi: Horovod cannot pair it with transport=gloo; choices: gloo, null"
    ),
    (*HOROVOD, "horovod.groups=2", "horovod.gradient_predivide_factor=2"): (
        "horovod.gradient_predivide_factor=2: ignored where horovod.groups is set; keep one"
    ),
    (*HOROVOD, "horovod.disable_group_fusion=true"): (
        "horovod.disable_group_fusion=true: without horovod.groups it turns all fusion off; "
        "horovod.fusion_threshold_mb=0 does that"
    ),
    (*HOROVOD, "horovod.autotune=true", "horovod.cycle_time_ms=5"): (
        "horovod.cycle_time_ms=5: horovod.autotune=true searches it itself; keep one"
    ),
    (*HOROVOD, "horovod.autotune_steps_per_sample=2"): "horovod.autotune_steps_per_sample=2: needs autotune=true",
    # What no CUDA graph can hold.
    (*HOROVOD, "cuda_graphs=true"): (
        "cuda_graphs=true: Horovod's background thread agrees on each message with the other ranks over the host, "
        "which no graph can hold; for DDP and local only"
    ),
    (*DDP, "cuda_graphs=true"): "cuda_graphs=true: needs device=cuda; here device=cpu",
    (*DDP, "optimizer.name=adam", "optimizer.capturable=true"): (
        "optimizer.capturable=true: only adam and adamw on CUDA heed it; here optimizer.name=adam device=cpu"
    ),
    (*HOROVOD, "horovod.thread_affinity=1"): (
        "horovod.thread_affinity=1: names 1 core(s) for cluster.ranks_per_node=2; one for each rank of a node"
    ),
    (*HOROVOD, "horovod.num_nccl_streams=2"): "horovod.num_nccl_streams=2: only NCCL heeds it; transport is gloo",
    (*HOROVOD, "horovod.enable_async_completion=true"): (
        "horovod.enable_async_completion=true: only NCCL heeds it; transport is gloo"
    ),
    (*MPI, "horovod.batch_d2d_memcopies=false"): (
        "horovod.batch_d2d_memcopies=false: only NCCL heeds it; transport is mpi"
    ),
    (*HOROVOD, "horovod.hierarchical_allreduce=true"): (
        "horovod.hierarchical_allreduce=true: Horovod turns it off but for NCCL on several nodes; "
        "here transport=gloo cluster.nodes=1"
    ),
    (*HOROVOD, "horovod.torus_allreduce=true"): (
        "horovod.torus_allreduce=true: Horovod turns it off but for NCCL on several nodes; "
        "here transport=gloo cluster.nodes=1"
    ),
    # Batches of a step.
    (*DDP, "accumulation_steps=3", "data.global_batch=64"): (
        "data.global_batch=64: does not divide by the world size 2 (cluster.nodes=1 x cluster.ranks_per_node=2) "
        "x accumulation_steps=3"
    ),
}


def case(*words: str, gpus: int = 0) -> Case:
    (contestant,) = study(*words, gpus=gpus).contestants
    return contestant.case


@pytest.mark.parametrize(("words", "line"), REFUSED.items(), ids=[" ".join(words) for words in REFUSED])
def test_what_cannot_be_in_force_is_one_line(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError) as caught:
        study(*words)
    assert str(caught.value) == line


def test_nccl_on_one_node_still_has_no_hierarchy() -> None:
    for name in ("hierarchical_allreduce", "torus_allreduce"):
        with pytest.raises(UserError, match=rf"^horovod.{name}=true: .*here transport=nccl cluster.nodes=1$"):
            case(*NCCL, f"horovod.{name}=true", gpus=2)


def test_nccl_takes_its_own_knobs() -> None:
    words = ("num_nccl_streams=2", "enable_async_completion=true", "batch_d2d_memcopies=false")
    found = case(*NCCL, *(f"horovod.{word}" for word in words), gpus=2).horovod
    assert found is not None
    assert (found.num_nccl_streams, found.enable_async_completion, found.batch_d2d_memcopies) == (2, True, False)
    ddp = case(*DDP, "ddp.is_high_priority_stream=true", "ddp.comm_hook=powersgd", gpus=2)
    assert (ddp.transport, ddp.lossy) == ("nccl", "powersgd")


def test_ddp_over_nccl_takes_a_graph() -> None:
    graphed = (*DDP, "transport=nccl", "cuda_graphs=true")
    assert case(*graphed, gpus=2).cuda_graphs
    assert case(*graphed, "optimizer.name=adamw", "optimizer.capturable=true", gpus=2).optimizer.capturable
    refused = {
        "optimizer.name=adam": "optimizer.name=adam needs optimizer.capturable=true",
        "precision=fp16": "the gradient scaler of precision=fp16 waits for the host; takes fp32, bf16",
        "transport=gloo": "gradients go through the host with transport=gloo; takes nccl",
        "ddp.find_unused_parameters=true": "ddp.find_unused_parameters=true asks the host in each step; keep one",
        "ddp.comm_hook=powersgd": "ddp.comm_hook=powersgd decides on the host in each step; keep one",
    }
    for word, reason in refused.items():
        with pytest.raises(UserError) as caught:
            case(*[one for one in graphed if one.split("=")[0] != word.split("=")[0]], word, gpus=2)
        assert str(caught.value) == f"cuda_graphs=true: {reason}"


def test_several_nodes_take_the_hierarchy_over_mpi_alone() -> None:
    from benches.rules import refuse

    base = case(*NCCL, "horovod.controller=mpi", gpus=2)
    assert base.horovod is not None

    def wide(**settings: object) -> Case:
        cluster = msgspec.structs.replace(base.cluster, nodes=2)
        return msgspec.structs.replace(base, cluster=cluster, horovod=msgspec.structs.replace(base.horovod, **settings))

    refuse(wide(hierarchical_allreduce=True))
    refuse(wide(torus_allreduce=True, controller=None))
    with pytest.raises(UserError, match=r"^horovod.hierarchical_allreduce=true: needs horovod.controller=mpi"):
        refuse(wide(hierarchical_allreduce=True, controller="gloo"))
    with pytest.raises(UserError, match=r"^horovod.torus_allreduce=true: .* keep one$"):
        refuse(wide(hierarchical_allreduce=True, torus_allreduce=True))


def test_a_step_counts_the_samples_of_all_its_passes() -> None:
    one, four = case(*DDP, "data.per_rank_batch=8"), case(*DDP, "data.per_rank_batch=8", "accumulation_steps=4")
    assert (one.global_batch, four.global_batch) == (16, 64)
    strong = case(*DDP, "data.global_batch=64", "accumulation_steps=4")
    assert (strong.data.per_rank_batch, strong.global_batch) == (8, 64)


def test_the_controller_mpi_brings_its_launcher_and_its_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    found = case(*NCCL, "horovod.controller=mpi", gpus=2)
    assert found.uses_mpi
    assert choose.launcher(found) == "mpirun"
    assert found.cluster.mpi_yield_when_idle
    assert provenance.polling(found) == "yield"
    monkeypatch.setattr("benches.provenance.mpich_is_loaded", lambda: True)
    assert provenance.polling(found) is None
    assert choose.launcher(case(*NCCL, gpus=2)) == "horovodrun"
    answer = Answer(horovod={"gloo": True, "mpi": False, "nccl": True})
    with pytest.raises(UserError, match=r"^horovod.controller=mpi: this Horovod was built without it"):
        preflight.judge(answer, [found])


@pytest.mark.parametrize(
    ("words", "lossy"),
    [
        ((*DDP, "ddp.comm_hook=bf16"), "bf16"),
        ((*DDP, "ddp.comm_hook=fp16"), "fp16"),
        ((*HOROVOD, "horovod.compression=fp16"), "fp16"),
        (HOROVOD, None),
        (DDP, None),
    ],
)
def test_what_gradients_lose_is_a_mark(words: tuple[str, ...], lossy: str | None) -> None:
    found = case(*words)
    assert found.lossy == lossy
    assert ("lossy" in marks(found, 8.0, 9)) == (lossy is not None)
