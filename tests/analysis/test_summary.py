"""From records to rows, comparisons, failures and warnings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from planted import HOST, PASSED, Plant, header, make_case, plant, samples, smoke

from analysis import grids, headline, method, summary, table
from analysis.rows import Summary
from benches import record

Make = Callable[..., Path]
FAILED = record.Parity(passed=False, error=0.25, bound=1e-7)


def reduced(folder: Path) -> Summary:
    return summary.reduce(table.read(folder))


def exact(engine: str, transport: str | None, ranks: int, step_s: float, **case: Any) -> Plant:
    """A contestant whose launches hardly vary."""
    return Plant(make_case(engine, transport, ranks, **case), step_s, point={"ranks": ranks}, launch_sd=1e-4)


def test_the_json_object_has_the_keys_that_the_design_names(study_folder: Make) -> None:
    found = summary.summarise(study_folder(smoke(), reference={"engine": "ddp", "transport": "gloo"}))
    assert list(found) == [
        "study", "questions", "contestants", "comparisons", "control", "failures", "warnings",
    ]  # fmt: skip
    wanted = {"name", "case", "engine", "transport", "model", "world_size", "settings", "effective", "step_time_s"}
    assert wanted | {"throughput", "parity", "marks"} <= set(found["contestants"][0])
    assert {"a", "b", "ratio", "verdict"} <= set(found["comparisons"][0])
    assert set(found["comparisons"][0]["ratio"]) == {"value", "low", "high", "level", "n", "unit"}
    assert found["contestants"][0]["parity"] == {"passed": True, "error": 1e-9, "bound": 1e-7}
    json.dumps(found, allow_nan=False)


def test_one_launch_still_gives_valid_json(study_folder: Make) -> None:
    found = summary.summarise(study_folder(smoke()[4:7], launches=1))
    assert found["comparisons"][0]["ratio"]["high"] is None
    json.dumps(found, allow_nan=False)


def test_estimates_of_a_contestant(study_folder: Make) -> None:
    row = reduced(study_folder([exact("ddp", "gloo", 2, 0.05)])).rows[0]
    assert row.step_time_s
    assert row.throughput
    assert row.step_time_s.value == pytest.approx(0.05, rel=0.01)
    assert row.throughput.value == pytest.approx(32 / 0.05, rel=0.01)
    assert (row.step_time_s.n, row.step_time_s.unit, row.throughput.unit) == (3, "s", "image/s")


def test_each_meets_the_reference_of_its_point_and_world_size(study_folder: Make) -> None:
    found = reduced(study_folder(smoke(), reference={"engine": "horovod", "transport": "gloo"}))
    pairs = {(found.rows[c.a].case.cell, found.rows[c.b].case.cell) for c in found.comparisons}
    assert pairs == {("ddp/gloo", "horovod/gloo"), ("horovod/mpi", "horovod/gloo")}
    same = [(found.rows[c.a], found.rows[c.b]) for c in found.comparisons]
    assert all(a.world_size == b.world_size and a.case.model == b.case.model for a, b in same)
    assert len(same) == 8


def test_every_other_meets_a_reference_that_is_not_the_first(study_folder: Make) -> None:
    other = Plant(make_case("ddp", "gloo", 2, seed=2), 0.05, name="other", point={"ranks": 2})
    plants = [exact("ddp", "gloo", 2, 0.05), exact("horovod", "gloo", 2, 0.06), other]
    found = reduced(study_folder(plants, reference={"seed": 2}))
    assert [(c.a, c.b) for c in found.comparisons] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("reference", "cell"),
    [
        ({}, "ddp/gloo"),
        ({"engine": "horovod"}, "horovod/gloo"),
        ({"engine": "horovod", "transport": "mpi"}, "horovod/mpi"),
        ({"horovod": {"cycle_time_ms": 1.0}}, "horovod/gloo"),
        ({"horovod.cycle_time_ms": 1.0, "transport": "mpi"}, "horovod/mpi"),
        ({"engine": "nonsense"}, "ddp/gloo"),
    ],
)
def test_the_reference_is_found_by_its_settings(study_folder: Make, reference: dict[str, Any], cell: str) -> None:
    found = reduced(study_folder(smoke()[4:7], reference=reference))
    assert {found.rows[index].case.cell for index in found.references.values()} == {cell}
    assert any("took its place" in line for line in found.warnings) == (reference.get("engine") == "nonsense")


def test_verdicts_follow_what_was_planted(study_folder: Make) -> None:
    plants = [
        exact("ddp", "gloo", 2, 0.050),
        exact("horovod", "gloo", 2, 0.060),
        Plant(make_case("horovod", "mpi", 2), 0.0502, point={"ranks": 2}, launch_sd=1e-4),
        Plant(make_case("horovod", "mpi", 2, seed=2), 0.04, name="quick", point={"ranks": 2}, launch_sd=1e-4),
    ]
    found = reduced(study_folder(plants, launches=6, rounds=6))
    assert [c.verdict for c in found.comparisons] == ["slower", "equivalent", "faster"]
    assert [c.ratio.value for c in found.comparisons] == pytest.approx([1.2, 1.004, 0.8], rel=0.005)
    assert not any(c.provisional for c in found.comparisons)
    assert found.comparisons[0].ratio.level == pytest.approx(1 - 0.05 / 4), "three, and the best of Horovod"


def test_a_verdict_is_as_provisional_as_its_pair(study_folder: Make) -> None:
    base, rival = smoke()[4:6]
    found = reduced(study_folder([replace(base, launches=3), rival], launches=5))
    assert [row.marks for row in found.rows] == [("provisional",), ()]
    (table,) = [grids.contestants(found, group) for group in found.groups()]
    assert all(any("(provisional)" in cell for cell in row) for row in table.rows)


def test_fewer_than_five_launches_are_provisional_everywhere(study_folder: Make) -> None:
    found = reduced(study_folder(smoke()[4:7], launches=4))
    assert all(c.provisional for c in found.comparisons)
    assert all("provisional" in row.marks for row in found.rows)
    assert any("provisional" in line for line in found.warnings)


def test_launches_are_paired_by_number(tmp_path: Path) -> None:
    """A drift from launch to launch that hits both alike leaves the ratio exact."""
    cases = [make_case("ddp", "gloo", 1), make_case("horovod", "gloo", 1)]
    plant(tmp_path, [Plant(case, 1.0, launches=0) for case in cases], launches=3)
    for launch, drift in enumerate((1.0, 3.0, 0.5)):
        for case, factor in zip(cases, (1.0, 1.1), strict=True):
            folder = tmp_path / "launches" / case.id / str(launch)
            record.write(folder, header(case, launch), samples(np.full((2, 1), drift * factor), 20))
    ratio = reduced(tmp_path).comparisons[0].ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.1, 1.1, 1.1))


def test_only_launches_that_both_have_are_paired(study_folder: Make) -> None:
    plants = smoke()[4:6]
    folder = study_folder(plants)
    (folder / "launches" / plants[0].case.id / "1" / record.HEADER).unlink()
    assert reduced(folder).comparisons[0].ratio.n == 2


def test_who_fails_parity_is_reported_and_not_ranked(study_folder: Make) -> None:
    plants = smoke()[4:7]
    plants[1].parity = FAILED
    found = reduced(study_folder(plants))
    assert [row.ranked for row in found.rows] == [True, False, True]
    assert found.rows[1].step_time_s is None
    assert {c.a for c in found.comparisons} == {2}
    (failure,) = found.failures
    assert (failure.kind, failure.launches) == ("parity", (0, 1, 2))
    assert found.plain()["failures"][0]["parity"] == {"passed": False, "error": 0.25, "bound": 1e-7}


def test_one_failed_gate_among_several_launches_unranks(study_folder: Make) -> None:
    plants = smoke()[4:6]
    folder = study_folder(plants)
    case = plants[1].case
    record.write(folder / "launches" / case.id / "3", header(case, 3, status="failed", reason="r", parity=FAILED), None)
    assert [row.ranked for row in reduced(folder).rows] == [True, False]


def test_a_brief_gate_has_no_error_and_hides_none(study_folder: Make) -> None:
    plants = smoke()[4:6]
    folder = study_folder(plants)
    assert "samples only" not in " ".join(method.paragraphs(reduced(folder)))
    brief = record.Parity(passed=True)
    for launch in (1, 2):
        out = folder / "launches" / plants[1].case.id / str(launch)
        (out / record.HEADER).write_bytes(msgspec.json.encode(msgspec.structs.replace(record.read(out), parity=brief)))
    assert "samples only" in " ".join(method.paragraphs(reduced(folder)))
    whole = {"passed": True, "error": PASSED.error, "bound": PASSED.bound}
    assert [row.parity for row in reduced(folder).rows] == [whole, whole]


def test_a_brief_gate_that_was_not_passed_unranks(study_folder: Make) -> None:
    plants = smoke()[4:6]
    folder = study_folder(plants)
    case, failed = plants[1].case, record.Parity(passed=False)
    record.write(folder / "launches" / case.id / "3", header(case, 3, status="failed", reason="r", parity=failed), None)
    found = reduced(folder)
    assert [row.ranked for row in found.rows] == [True, False]
    assert found.plain()["failures"][0]["parity"] == {"passed": False, "error": None, "bound": None}


def test_where_the_reference_fails_another_takes_its_place_and_that_is_said(study_folder: Make) -> None:
    plants = smoke()[4:7]
    plants[0].parity = FAILED
    found = reduced(study_folder(plants, reference={"engine": "ddp"}))
    assert set(found.references.values()) == {1}
    assert any("the reference engine=ddp was not measured" in line for line in found.warnings)


def test_failed_launches_are_told_with_their_log(study_folder: Make) -> None:
    plants = smoke()[4:6]
    plants[1].launches = 0
    folder = study_folder(plants)
    for launch in (0, 1):
        case = plants[1].case
        changes = {"status": "timeout", "reason": "limit_s=300 ran out", "log_tail": ["last words"], "parity": None}
        record.write(folder / "launches" / case.id / str(launch), header(case, launch, **changes), None)
    found = reduced(folder)
    (failure,) = found.failures
    assert (failure.kind, failure.status, failure.launches) == ("launch", "timeout", (0, 1))
    assert failure.log_tail == ("last words",)
    assert not any("not finished" in line for line in found.warnings), "given up, not unfinished"


def test_an_unfinished_study_says_so(study_folder: Make) -> None:
    plants = smoke()[4:6]
    plants[1].launches = 1
    assert any("2 launches have no record" in line for line in reduced(study_folder(plants)).warnings)


def test_no_spare_core_and_oversubscription(study_folder: Make) -> None:
    cpus = HOST["cpus"]
    plants = [exact("ddp", "gloo", 4, 0.1), exact("ddp", "gloo", 5, 0.1), exact("ddp", "gloo", 8, 0.1, threads=2)]
    found = reduced(study_folder(plants))
    assert cpus == 8
    assert [row.marks for row in found.rows] == [("provisional",), ("provisional",), ("provisional", "oversubscribed")]
    said = [line for line in found.warnings if "no spare core for communication" in line]
    assert [line.split(": ")[1].split(";")[0] for line in said] == ["5 ranks on 8 cores", "8 ranks on 8 cores"]


def test_world_size_two_alone_is_warned_of(study_folder: Make) -> None:
    assert any("world size 2 only" in line for line in reduced(study_folder(smoke())).warnings)


def test_larger_worlds_silence_that_warning(study_folder: Make) -> None:
    plants = [exact("ddp", "gloo", 2, 0.1), exact("ddp", "gloo", 3, 0.1)]
    assert not any("world size 2 only" in line for line in reduced(study_folder(plants)).warnings)


def test_virtual_rows_do_not_meet_real_ones(study_folder: Make) -> None:
    point = {"ranks": 2}
    plants = [
        Plant(make_case("ddp", "gloo", 2), 0.05, point=point),
        Plant(make_case("horovod", "gloo", 2), 0.06, point=point),
        Plant(make_case("horovod", "gloo", 2, cluster="virtual"), 0.01, name="v", point=point),
    ]
    found = reduced(study_folder(plants))
    assert [(c.a, c.b) for c in found.comparisons] == [(1, 0)]
    assert [[row.index for row in group] for group in found.groups()] == [[0, 1], [2]]
    assert "virtual" in found.rows[2].marks


def test_launch_warnings_are_counted(study_folder: Make) -> None:
    plants = smoke()[4:5]
    plants[0].launches = 0
    folder = study_folder(plants)
    case = plants[0].case
    for launch in range(3):
        record.write(
            folder / "launches" / case.id / str(launch),
            header(case, launch, warnings=["the engine had not settled"], parity=PASSED),
            samples(np.ones((3, 2)), 20),
        )
    assert "the engine had not settled (3 launches)" in reduced(folder).warnings


def test_a_case_that_two_points_share_stands_once_in_a_table(study_folder: Make) -> None:
    local = make_case("local", None, 1)
    plants = [
        Plant(local, 0.04, point={"cluster.ranks_per_node": 1}),
        Plant(make_case("ddp", "gloo", 1), 0.041, point={"cluster.ranks_per_node": 1}),
        Plant(local, 0.04, point={"cluster.ranks_per_node": 2}),
        Plant(make_case("ddp", "gloo", 2), 0.06, point={"cluster.ranks_per_node": 2}),
    ]
    found = reduced(study_folder(plants))
    assert [[row.index for row in group] for group in found.groups()] == [[0, 1, 3]]
    assert found.comparisons == [], "local is a baseline, and the others have other world sizes"


def test_headlines(study_folder: Make) -> None:
    plants = [
        exact("ddp", "gloo", 2, 0.050),
        exact("horovod", "gloo", 2, 0.060),
        Plant(make_case("horovod", "mpi", 2), 0.11, point={"ranks": 2}, launch_sd=1e-4),
    ]
    (line,) = headline.headlines(reduced(study_folder(plants)))
    assert line.startswith(
        "resnet18_64, ranks=2, 2 ranks: ddp/gloo is fastest; horovod/gloo 20 % slower; horovod/mpi 2.2 ×"
    )
    assert line.endswith("(provisional, 3 launches each)")


def test_a_faster_contestant_is_named_first(study_folder: Make) -> None:
    plants = [exact("ddp", "gloo", 2, 0.050), exact("horovod", "gloo", 2, 0.040)]
    (line,) = headline.headlines(reduced(study_folder(plants, launches=6)))
    assert "horovod/gloo is fastest, 20 % faster than ddp/gloo (6 launches each)" in line


def test_noise_is_no_verdict(study_folder: Make) -> None:
    plants = [Plant(p.case, 0.05, point={"ranks": 2}, launch_sd=0.05) for p in smoke()[4:6]]
    (line,) = headline.headlines(reduced(study_folder(plants)))
    assert "no verdict yet; so far, against ddp/gloo: horovod/gloo" in line


def test_while_launches_are_to_come_there_are_intervals_and_no_verdicts(study_folder: Make) -> None:
    plants = [exact("ddp", "gloo", 2, 0.050), exact("horovod", "gloo", 2, 0.060), exact("horovod", "mpi", 2, 0.040)]
    (line,) = headline.standings(reduced(study_folder(plants, launches=4)))
    assert line.startswith("resnet18_64, ranks=2, 2 ranks, so far: against ddp/gloo: horovod/mpi −20 % (−2")
    assert "; horovod/gloo +20 % (+" in line
    assert line.endswith(" %); 4 launches each")
    assert "faster" not in line


def test_one_launch_has_no_interval_yet(study_folder: Make) -> None:
    plants = [exact("ddp", "gloo", 2, 0.050), exact("horovod", "mpi", 2, 0.040)]
    (line,) = headline.standings(reduced(study_folder(plants, launches=1)))
    assert "horovod/mpi −20 % (no interval yet)" in line


def test_a_study_of_failures_only_says_that_nothing_was_measured(study_folder: Make) -> None:
    plants = smoke()[4:7]
    for one in plants:
        one.parity = FAILED
    (line,) = headline.headlines(reduced(study_folder(plants)))
    assert line.endswith("nothing was measured; not ranked: ddp/gloo; horovod/gloo; horovod/mpi")
