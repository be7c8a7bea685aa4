"""The first table of a report, what would change it, and DDP beside Horovod beyond speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from planted import Plant, contestant, header, make_case, smoke
from test_report import DDP, hostile_plants, reduced

from analysis import beyond, decision
from benches import record

Make = Callable[..., Path]


def pair(ratio: float, sd: float = 0.002, ranks: int = 2) -> list[Plant]:
    return [
        Plant(make_case(engine, "gloo", ranks), step, launch_sd=sd, point={"cluster.ranks_per_node": ranks})
        for engine, step in (("ddp", 0.1), ("horovod", 0.1 * ratio))
    ]


@pytest.mark.parametrize(
    ("ratio", "sd", "answer"),
    [(1.2, 0.002, "ddp/gloo is faster"), (0.8, 0.002, "horovod/gloo is faster"), (1.0, 0.001, "equivalent"),
     (1.05, 0.2, "not decided")],
)  # fmt: skip
def test_a_stranger_reads_which_by_how_much_and_how_sure(
    study_folder: Make, ratio: float, sd: float, answer: str
) -> None:
    grid = decision.grid(reduced(study_folder(pair(ratio, sd), launches=6, reference=DDP)))
    cells = dict(zip(decision.HEAD, grid.rows[0], strict=True))
    assert cells["answer"] == answer
    assert cells["step time"].startswith("horovod/gloo ")
    assert cells["step time"].endswith(" % against ddp/gloo")
    assert "…" in cells["interval"]
    assert "6 launches" in cells["how sure"]


def test_marks_stand_in_the_decision(study_folder: Make) -> None:
    plants = [replace(one, case=make_case(one.case.engine, "gloo", 2, threads=8)) for one in pair(1.2)]
    (row, *_) = decision.grid(reduced(study_folder(plants, launches=3))).rows
    assert "[oversubscribed]" in row[3]
    assert "provisional" in row[6]


def test_what_would_change_the_answer(study_folder: Make) -> None:
    lines = decision.changes(reduced(study_folder(pair(1.2), launches=6, reference=DDP)))
    assert "would undo the verdict; with a margin of 2" in lines[0]


def test_more_launches_are_asked_for_where_they_would_do(study_folder: Make) -> None:
    lines = decision.changes(reduced(study_folder(pair(1.05, 0.05), launches=4, reference=DDP)))
    assert "launches would decide it" in lines[0]
    assert "up to 2 ranks on one node" in lines[-1]


def test_one_launch_is_told_to_be_too_few(study_folder: Make) -> None:
    lines = decision.changes(reduced(study_folder(pair(1.2), launches=1, reference=DDP)))
    assert "one pair of launches gives no interval" in lines[0]


def test_a_turn_with_the_number_of_ranks_is_said(study_folder: Make) -> None:
    lines = decision.changes(reduced(study_folder(pair(1.2) + pair(0.8, ranks=4), launches=6, reference=DDP)))
    assert "the number of ranks turns the answer: see the table of decisions" in lines


def test_beyond_speed_says_only_what_records_say(study_folder: Make) -> None:
    grid = beyond.grid(reduced(study_folder(smoke(), launches=2)))
    cells = {row[0]: row[1:] for row in grid.rows}
    assert cells["transports tried here that worked"][:2] == ["gloo", "gloo, mpi"]
    assert cells["launches that ended well"][:2] == ["8 of 8", "16 of 16"]
    assert cells["start-up to the first step, s"][0] == "4.00"
    assert cells["version"][0] == "torch 2.14.1"
    assert "transports of the build" not in cells, "no record speaks of it"
    assert all(row[3] for row in grid.rows), "each has its source"


def test_failures_stand_in_beyond_speed(study_folder: Make) -> None:
    grid = beyond.grid(reduced(study_folder(hostile_plants())))
    cells = {row[0]: row[1:] for row in grid.rows}
    assert cells["settings that gave trouble"][1] == "parity: reduction"


def test_a_control_of_another_world_size_is_named(study_folder: Make) -> None:
    large = pair(1.2, ranks=4)
    plants = [*pair(1.2), *large, replace(large[0], name="ddp (again)", copy=1)]
    grid = decision.grid(reduced(study_folder(plants, launches=6, reference=DDP)))
    sure = {row[1]: row[6] for row in grid.rows}
    assert sure["2"].endswith(" at 4 ranks")
    assert not sure["4"].endswith(" ranks")


def test_torchrun_is_known_by_its_module(study_folder: Make) -> None:
    folder = study_folder(pair(1.0), launches=1)
    for path in folder.rglob("record.json"):
        line = "python -m torch.distributed.run --standalone -m benches.worker case.yaml"
        path.write_text(path.read_text().replace("python -m benches.worker", line))
    cells = {row[0]: row[1:] for row in beyond.grid(reduced(folder)).rows}
    assert cells["started by"][:2] == ["torchrun", "torchrun"]


def test_tries_that_failed_before_stand_beside_the_launches(study_folder: Make) -> None:
    plants = pair(1.0)
    folder = study_folder(plants, launches=3)
    for number, status in enumerate(("failed", "timeout", "interrupted")):
        aside = folder / "aside" / contestant(plants[0]).key / f"1.{number}"
        record.write(aside, header(plants[0].case, 1, status=status, reason="it ended"), None)
    cells = {row[0]: row[1:] for row in beyond.grid(reduced(folder)).rows}
    assert cells["launches that ended well"][:2] == ["3 of 3, 2 tries set aside", "3 of 3"]
