"""What the result lists as unlike: differences that were allowed or are harmless, and those that only records show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from planted import Plant, header, make_case, plant, samples

from analysis import alike, fairness, summary, table
from benches import record
from benches.spec import Case, DdpSettings, HorovodSettings

Make = Callable[..., Path]
RANK = {
    "host": "node1",
    "threads": 1,
    "cpus_allowed": [0, 1],
    "environment": {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"},
}
PROVENANCE: dict[str, Any] = {
    "versions": {"python": "3.11.1", "torch": "2.14.1", "horovod": "0.28.1", "openmpi": "5.0.11", "numpy": "2.0"},
    "torch_build": {"cuda": None},
    "git": {"commit": "0" * 40, "dirty": False},
}


def measured(folder: Path, *changes: dict[str, Any], cells: tuple[str, ...] = ("ddp/gloo", "horovod/gloo")) -> Path:
    """A study whose records hold, for one contestant after the other, what is common and these changes of it."""
    cases = [make_case(*cell.split("/"), 2) for cell in cells]
    plant(folder, [Plant(case, 0.05, launches=0) for case in cases])
    for case, change in zip(cases, [*changes, *[{}] * len(cells)], strict=False):
        ranks = [{**RANK, **one} for one in change.pop("ranks", [{}, {}])]
        provenance = {**PROVENANCE, **change.pop("provenance", {}), "ranks": ranks}
        out = folder / "launches" / case.id / "0"
        record.write(out, header(case, 0, provenance=provenance, **change), samples(np.ones((2, 2)), 20))
    return folder


def listed(folder: Path) -> list[str]:
    return fairness.differences(table.read(folder))


def test_what_is_alike_is_not_listed(tmp_path: Path) -> None:
    assert listed(measured(tmp_path, cells=("ddp/gloo", "horovod/gloo", "horovod/mpi"))) == []


UNLIKE = {
    "contestants differ in threads of a rank: 2 (ddp/gloo), 1 (horovod/gloo)": {"ranks": [{"threads": 2}] * 2},
    "contestants differ in threads of a rank: 1, 2 (ddp/gloo), 1 (horovod/gloo)": {"ranks": [{}, {"threads": 2}]},
    "contestants differ in cores of the ranks: 0,2-4 (ddp/gloo), 0-1 (horovod/gloo)": {
        "ranks": [{"cpus_allowed": [0, 2, 3, 4]}] * 2
    },
    "contestants differ in version of torch: 2.13.0 (ddp/gloo), 2.14.1 (horovod/gloo)": {
        "provenance": {"versions": {**PROVENANCE["versions"], "torch": "2.13.0"}}
    },
    "contestants differ in commit of Ringduel: 000000000000 with changes (ddp/gloo), 000000000000 (horovod/gloo)": {
        "provenance": {"git": {"commit": "0" * 40, "dirty": True}}
    },
    "contestants differ in NCCL_ALGO (environment): Tree (ddp/gloo), Ring (horovod/gloo)": {
        "ranks": [{"environment": {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Tree"}}] * 2
    },
    "contestants differ in device: Other CPU (ddp/gloo), Test CPU (horovod/gloo)": {"device": "Other CPU"},
    "contestants differ in bytes of gradients: 10 (ddp/gloo), 0 (horovod/gloo)": {"gradient_bytes": 10},
    "contestants differ in clock: cuda_event (ddp/gloo), perf_counter (horovod/gloo)": {"clock": "cuda_event"},
}


@pytest.mark.parametrize("line", UNLIKE)
def test_what_records_disagree_on_is_a_warning_with_both_values(line: str, tmp_path: Path) -> None:
    folder = measured(tmp_path, dict(UNLIKE[line]))
    assert listed(folder) == [line]
    assert line in summary.summarise(folder)["warnings"]


def test_a_variable_that_one_side_lacks_is_listed(tmp_path: Path) -> None:
    folder = measured(tmp_path, {"ranks": [{"environment": {"OMP_NUM_THREADS": "1"}}] * 2})
    assert listed(folder) == ["contestants differ in NCCL_ALGO (environment): unset (ddp/gloo), Ring (horovod/gloo)"]


def test_what_launchers_and_engines_set_for_themselves_is_not_compared(tmp_path: Path) -> None:
    own = [
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        {"HOROVOD_CYCLE_TIME": "1.0"},
        {"HOROVOD_CYCLE_TIME": "5.0", "OMPI_MCA_num_procs": "2", "LD_LIBRARY_PATH": "/mpi/lib"},
    ]
    changes = [{"ranks": [{"environment": {**RANK["environment"], **one}}] * 2} for one in own]  # type: ignore[dict-item]
    assert listed(measured(tmp_path, *changes, cells=("ddp/gloo", "horovod/gloo", "horovod/mpi"))) == []


def test_the_version_of_what_a_contestant_does_not_use_is_not_compared(tmp_path: Path) -> None:
    without = {name: value for name, value in PROVENANCE["versions"].items() if name not in ("horovod", "openmpi")}
    assert listed(measured(tmp_path, {"provenance": {"versions": without}})) == []


def test_harmless_and_allowed_differences_are_listed(study_folder: Make) -> None:
    plants = [Plant(make_case("ddp", "gloo", 2, seed=2), 0.05), Plant(make_case("horovod", "gloo", 2, limit_s=9), 0.06)]
    warnings = summary.summarise(study_folder(plants, allow_unfair=("seed",)))["warnings"]
    assert "contestants differ in limit_s: 300 (ddp/gloo), 9 (horovod/gloo)" in warnings
    assert (
        "contestants differ in seed: 2 (ddp/gloo), 1 (horovod/gloo); their comparison is biased, allowed by "
        "study.allow_unfair" in warnings
    )


def test_differences_of_several_points_are_listed_once(study_folder: Make) -> None:
    plants = [
        Plant(make_case(engine, "gloo", ranks, limit_s=limit_s), 0.05, point={"ranks": ranks})
        for ranks in (2, 3)
        for engine, limit_s in (("ddp", 300.0), ("horovod", 9.0))
    ]
    assert len([line for line in listed(study_folder(plants)) if "limit_s" in line]) == 1


def swept(folder: Path, sizes: dict[float | None, list[int]]) -> list[str]:
    """Marks `same as` of DDP's rows, one for each bucket size with the buckets that came of it."""
    cases = [make_case("ddp", "gloo", 2) for _ in sizes]
    named = []
    for case, (cap, buckets) in zip(cases, sizes.items(), strict=True):
        content = {name: getattr(case, name) for name in case.__struct_fields__}
        named.append((type(case)(**{**content, "ddp": DdpSettings(bucket_cap_mb=cap)}), f"ddp-{cap}", buckets))
    plant(folder, [Plant(case, 0.05, name=name, launches=0) for case, name, _ in named], launches=1)
    for case, _, buckets in named:
        effective = {"bucket_sizes_bytes": buckets, "bucket_cap_bytes": case.ddp and case.ddp.bucket_cap_mb}
        out = folder / "launches" / case.id / "0"
        record.write(out, header(case, 0, effective=effective), samples(np.ones((2, 2)), 20))
    return [
        next((m for m in row.marks if m.startswith("same as")), "") for row in summary.reduce(table.read(folder)).rows
    ]


def test_buckets_that_came_out_alike_are_marked(tmp_path: Path) -> None:
    found = swept(tmp_path, {None: [1, 9], 1: [1, 1, 8], 25: [10], 100: [10]})
    assert found == ["", "", "", "same as ddp-25"]


def with_horovod(ranks: int, **settings: Any) -> Case:
    case = make_case("horovod", "mpi", ranks)
    return msgspec.structs.replace(case, horovod=HorovodSettings(**settings))


def same(folder: Path, cases: dict[str, Case], **changes: Any) -> dict[int, str]:
    """Marks of cases with these names, whose records differ in nothing else."""
    plant(folder, [Plant(one, 0.05, name=name, launches=0) for name, one in cases.items()], launches=1)
    for one in cases.values():
        found = header(one, 0, gradient_bytes=200 * 2**20, **changes)
        record.write(folder / "launches" / one.id / "0", found, samples(np.ones((2, one.cluster.world_size)), 20))
    return alike.same_as(table.read(folder))


def test_groups_are_as_many_as_came_of_them(tmp_path: Path) -> None:
    cases = {str(groups): with_horovod(2, groups=groups) for groups in (62, 1000)}
    assert same(tmp_path / "a", cases, effective={"groups": 62}) == {1: "same as 62"}
    assert same(tmp_path / "b", cases, effective={"controller": "mpi"}) == {}


def test_one_rank_sends_nothing_whatever_its_settings(tmp_path: Path) -> None:
    for ranks, marks in ((1, {1: "same as a"}), (2, {})):
        settings: dict[str, dict[str, Any]] = {
            "a": {},
            "b": {"fusion_threshold_mb": 8.0, "compression": "fp16"},
            "c": {"cycle_time_ms": 5.0},
        }
        cases = {name: with_horovod(ranks, **own) for name, own in settings.items()}
        assert same(tmp_path / str(ranks), cases, effective={"controller": "mpi"}) == marks


def test_a_polling_policy_that_mpich_does_not_have_makes_no_difference(tmp_path: Path) -> None:
    case = make_case("horovod", "mpi", 2)
    cluster = msgspec.structs.replace(case.cluster, mpi_yield_when_idle=True)
    cases = {"busy": case, "yield": msgspec.structs.replace(case, cluster=cluster)}
    told = {"effective": {"controller": "mpi"}}
    assert same(tmp_path / "open", cases, **told) == {}
    assert same(tmp_path / "mpich", cases, **told, provenance={"mpi_polling": None}) == {1: "same as busy"}


def test_thresholds_that_cap_nothing_are_marked(tmp_path: Path) -> None:
    case = make_case("horovod", "gloo", 2)
    content = {name: getattr(case, name) for name in case.__struct_fields__}
    cases = {
        mb: type(case)(**{**content, "horovod": HorovodSettings(fusion_threshold_mb=mb)}) for mb in (8.0, 32.0, 128.0)
    }
    plant(tmp_path, [Plant(one, 0.05, name=f"{mb:g}", launches=0) for mb, one in cases.items()], launches=1)
    for one in cases.values():
        changes = {"gradient_bytes": 20 * 2**20, "effective": {"controller": "gloo"}}
        record.write(tmp_path / "launches" / one.id / "0", header(one, 0, **changes), samples(np.ones((2, 2)), 20))
    assert alike.same_as(table.read(tmp_path)) == {2: "same as 32"}
