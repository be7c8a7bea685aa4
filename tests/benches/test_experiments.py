"""The files of conf/experiment: each composes, says what it asks, and holds the cells that answer it."""

from __future__ import annotations

import pytest
from composing import names, resolved, study

from benches.conffiles import CONF
from benches.errors import UserError
from benches.rules import refuse

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
MATRIX = ["ddp/gloo", "ddp/gloo", "ddp/mpi", "horovod/gloo", "horovod/mpi"]
OVER_NCCL = [f"study.contestants.{name}.transport=nccl" for name in ("ddp-gloo", "horovod-gloo")]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_comment_says_which_question_it_answers(name: str) -> None:
    first, *lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert first == "# @package _global_"
    comment = [line for line in lines if line.startswith("# ")]
    assert lines[0] in comment
    assert "?" in " ".join(comment)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_composes_with_gpus_and_all_but_gpu_without(name: str) -> None:
    for gpus in (2, 0)[: 1 if name == "gpu" else 2]:
        found = study(f"experiment={name}", cores=16, gpus=gpus)
        assert found.name == name
        for one in found.contestants:
            refuse(one.case)


def test_the_matrix_has_every_cell_and_the_hooks_control() -> None:
    found = study("experiment=transport_matrix")
    assert [one.case.cell for one in found.contestants] == MATRIX * 2
    through = [one.name for one in found.contestants if one.case.ddp and one.case.ddp.through_hook]
    assert through == ["ddp-hook"] * 2
    assert {one.case.model.name for one in found.contestants} == {"resnet18_64", "mlp"}


def test_the_matrix_over_nccl_is_composed_with_gpus_and_refused_without() -> None:
    words = ["experiment=transport_matrix", "device=cuda", "study.reference.transport=nccl", *OVER_NCCL]
    found = study(*words, cores=16, gpus=2)
    assert {one.case.cell for one in found.contestants if one.case.transport == "nccl"} == {"ddp/nccl", "horovod/nccl"}
    with pytest.raises(UserError, match=r"^device=cuda: torch sees no GPU here"):
        study(*words)
    with pytest.raises(UserError, match=r"^study\.contestants\.ddp-gloo\.transport=nccl: needs device=cuda"):
        study("experiment=transport_matrix", *OVER_NCCL)


def test_sweeps_hold_the_librarys_default_as_a_point_of_its_own() -> None:
    buckets = [one.case.ddp for one in study("experiment=bucket_sweep").contestants]
    assert [one and one.bucket_cap_mb for one in buckets] == [None, 1, 5, 25, 100]
    fusion = [one.case.horovod for one in study("experiment=fusion_sweep").contestants]
    assert (128, 1) in {(one.fusion_threshold_mb, one.cycle_time_ms) for one in fusion if one}
    assert len(fusion) == 15


def test_buckets_meet_fusion_over_both_transports() -> None:
    found = study("experiment=bucket_vs_fusion")
    cells = [one.case.cell for one in found.contestants]
    assert {cell: cells.count(cell) for cell in cells} == dict.fromkeys(sorted(set(MATRIX)), 5)


def test_compression_marks_who_loses_digits() -> None:
    found = study("experiment=compression")
    assert {one.name: one.case.lossy for one in found.contestants} == {
        "ddp-comm_hook=null": None,
        "ddp-comm_hook=fp16": "fp16",
        "ddp-comm_hook=bf16": "bf16",
        "horovod-compression=none": None,
        "horovod-compression=fp16": "fp16",
    }


def test_virtual_nodes_run_every_cell_at_every_size_once_and_alone() -> None:
    found = resolved("experiment=virtual_scaling", cores=2).study
    points = {(one.case.cell, one.case.cluster.link_gbps, one.case.cluster.nodes) for one in found.contestants}
    cells = sorted(set(MATRIX))
    assert points == {(cell, rate, nodes) for cell in cells for rate in (1, 10) for nodes in (1, 2, 4, 8)}
    assert len(found.contestants) == len(points), "no copies"
    assert {(one.case.cluster.name, one.case.model.name) for one in found.contestants} == {("virtual", "emulated")}
    assert (found.schedule, found.launches) == ("relaunch", 1)


@pytest.mark.parametrize(("name", "batches"), [("weak_scaling", {2}), ("strong_scaling", {8, 4, 2})])
def test_scaling_has_nodes_and_ranks_as_axes_and_a_bare_model(name: str, batches: set[int]) -> None:
    words = (f"experiment={name}", "cluster=hosts", "cluster.hosts=[a:2,b:2]", "device=cpu", "cluster.nodes=[1,2]")
    found = study(*words, cores=4).contestants
    shapes = {(one.case.cluster.nodes, one.case.cluster.ranks_per_node) for one in found}
    assert shapes == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert {one.case.engine for one in found if one.case.cluster.world_size == 1} == {"local", "ddp", "horovod"}
    assert {one.case.engine for one in found if one.case.cluster.world_size > 1} == {"ddp", "horovod"}
    assert {one.case.data.per_rank_batch for one in found} == batches


def test_strong_scaling_of_what_sleeps_as_long_whatever_the_batch_is_refused() -> None:
    with pytest.raises(UserError, match=r"^data\.global_batch=8: an emulated model sleeps as long"):
        study("experiment=strong_scaling", "model=emulated")
    assert study("experiment=weak_scaling", "model=emulated", "cluster=virtual", "cluster.nodes=[1,2,4,8]")


OWN = "study.contestants.ddp"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((f"{OWN}.ddp.bucket_cap_mb=[]",), f"{OWN}.ddp.bucket_cap_mb=[]: an empty sweep leaves nothing to run"),
        ((f"{OWN}.ddp={{}}",), f"{OWN}.ddp={{}}: an empty mapping sets nothing"),
        ((f"{OWN}.engine=[ddp,horovod]", f"{OWN}.ddp.static_graph=true"), f"{OWN}.ddp.static_graph=true: "),
        ((f"{OWN}.ddp={{static_graph: true, find_unused_parameters: true}}",), f"{OWN}.ddp.find_unused"),
        (("study.axes.seed=[1,2]", f"{OWN}.seed=3"), "study.axes.seed=[1,2]: contestant ddp sets seed too"),
        ((f"{OWN}.data.per_rank_batch=4", f"{OWN}.data.global_batch=8"), f"{OWN}.data.per_rank_batch=4 and "),
        (("experiment=fusion_sweep", "study.max_cases=14"), "study.max_cases=14: up to 15 cases; narrow an axis"),
    ],
)
def test_a_sub_grid_that_is_empty_contradictory_or_too_large_is_refused(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError) as caught:
        study(*words)
    assert str(caught.value).startswith(line)


def test_names_of_a_sub_grid_say_what_it_sweeps() -> None:
    assert names(study("experiment=bucket_sweep"))[0] == "ddp-bucket_cap_mb=null"
