"""What a study still needs: looks, a second A/A set, fresh launches of the best; decided alike after a resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planted import Plant, header, make_case

from analysis import summary, table
from analysis.further import Further, further
from benches import record
from benches.spec import AGAIN_FROM, CONFIRM_FROM

Make = Callable[..., Path]
DDP, HOROVOD = make_case("ddp", "gloo", 2), make_case("horovod", "gloo", 2)


def due(make: Make, *plants: Plant, **study: Any) -> Further | None:
    return further(table.read(make(list(plants), **{"launches": 6} | study)))


def extra(first: int, count: int, step_s: float = 0.05) -> dict[int, float]:
    return dict.fromkeys(range(first, first + count), step_s)


def noisy(step_s: float, **changes: Any) -> list[Plant]:
    return [Plant(DDP, 0.05, launch_sd=0.05, **changes), Plant(HOROVOD, step_s, launch_sd=0.05, **changes)]


def exact(step_s: float, **changes: Any) -> list[Plant]:
    return [Plant(DDP, 0.05, launch_sd=1e-4, **changes), Plant(HOROVOD, step_s, launch_sd=1e-4, **changes)]


def test_a_plain_study_needs_nothing(study_folder: Make) -> None:
    assert due(study_folder, *noisy(0.05)) is None


def test_an_open_verdict_asks_for_all_launches_up_to_the_next_look(study_folder: Make) -> None:
    found = due(study_folder, *noisy(0.05), stop_when="verdict")
    assert found
    assert (found.contestants, found.launches) == ((0, 1), range(6, 9))
    assert found.why == "after 6 launches 1 of 1 comparisons are inconclusive: on to 9"


def test_a_study_that_ended_between_looks_says_so(study_folder: Make) -> None:
    folder = study_folder(noisy(0.05), launches=6, stop_when="verdict")
    told = "7 launches, and the study is judged after 6 or 9 or 14 or 20: a verdict in between"
    assert not any(told in line for line in summary.reduce(table.read(folder)).warnings)
    for case in (DDP, HOROVOD):
        own = folder / "launches" / case.id
        record.write(own / "6", header(case, 6), record.read_samples(own / "5"))
    (line,) = [line for line in summary.reduce(table.read(folder)).warnings if told in line]
    assert line.endswith("goes on to 9")


def test_a_verdict_ends_the_study(study_folder: Make) -> None:
    assert due(study_folder, *exact(0.06), stop_when="verdict") is None


def test_a_half_width_is_reached_or_not(study_folder: Make) -> None:
    folder = study_folder(exact(0.06), launches=6, stop_when=0.005)
    assert further(table.read(folder)) is None
    shutil.rmtree(folder)
    found = due(study_folder, *noisy(0.07), stop_when=0.005)
    assert found
    assert found.why.endswith("wider than ±0.5 %: on to 9")


def test_a_look_that_was_interrupted_is_finished_before_it_is_judged(study_folder: Make) -> None:
    plants = exact(0.06)
    plants[0].extra = extra(6, 2)
    found = due(study_folder, *plants, stop_when="verdict")
    assert found
    assert (found.contestants, found.launches) == ((0, 1), range(6, 9))


def test_the_looks_come_to_an_end(study_folder: Make) -> None:
    assert due(study_folder, *noisy(0.05, launches=20), stop_when="verdict") is None


def test_who_fails_again_and_again_is_asked_for_nothing(study_folder: Make) -> None:
    plants = [*noisy(0.05, launches=9), Plant(make_case("horovod", "mpi", 2), 0.05, launches=6)]
    folder = study_folder(plants, launches=6, stop_when="verdict")
    for launch in (6, 7):
        out = folder / "launches" / plants[2].case.id / str(launch)
        record.write(out, header(plants[2].case, launch, status="failed", reason="r"), None)
    found = further(table.read(folder))
    assert found
    assert (found.contestants, found.launches) == ((0, 1), range(9, 14))


def test_nobody_goes_on_for_a_comparison_with_one_that_was_given_up(study_folder: Make) -> None:
    plants = [*noisy(0.05, launches=9), Plant(make_case("horovod", "mpi", 2), 0.05, launch_sd=0.05, launches=9)]
    plants[0].launches = 4
    folder = study_folder(plants, launches=6, stop_when="verdict", confirm=False)
    assert further(table.read(folder)) is not None
    for launch in (4, 5):
        out = folder / "launches" / DDP.id / str(launch)
        record.write(out, header(DDP, launch, status="failed", reason="r"), None)
    assert further(table.read(folder)) is None


def test_a_suspicious_control_is_run_again_once(study_folder: Make) -> None:
    def plants(again: int) -> list[Plant]:
        more = extra(AGAIN_FROM, again)
        copy = Plant(DDP, 0.0515, name="again", copy=1, launch_sd=1e-4, extra=more)
        return [*exact(0.06, extra=more), copy]

    folder = study_folder(plants(0), launches=6)
    found = further(table.read(folder))
    assert found
    assert (found.contestants, found.launches) == ((0, 2), range(AGAIN_FROM, AGAIN_FROM + 6))
    assert found.why == "the A/A control of ddp/gloo differs at 99 %: 6 launches more of both"
    for count, left in ((4, True), (6, False)):
        shutil.rmtree(folder)
        study_folder(plants(count), launches=6)
        assert (further(table.read(folder)) is not None) == left


def test_failed_launches_of_the_second_set_count_as_run(study_folder: Make) -> None:
    copy = Plant(DDP, 0.0515, name="again", copy=1, launch_sd=1e-4)
    folder = study_folder([*exact(0.06), copy], launches=6)
    for launch in range(AGAIN_FROM, AGAIN_FROM + 2):
        for key in (DDP.id, f"{DDP.id}-1"):
            changes = {"status": "timeout", "reason": "r"}
            record.write(folder / "launches" / key / str(launch), header(DDP, launch, **changes), None)
    assert further(table.read(folder)) is None


def test_the_best_meet_in_fresh_launches(study_folder: Make) -> None:
    plants = [*exact(0.06), Plant(make_case("horovod", "mpi", 2), 0.055, launch_sd=1e-4)]
    folder = study_folder(plants, launches=6)
    found = further(table.read(folder))
    assert found
    assert (found.contestants, found.launches) == ((2, 0), range(CONFIRM_FROM, CONFIRM_FROM + 6))
    assert found.why.endswith("the best meet in 6 fresh launches: horovod/mpi and ddp/gloo")
    shutil.rmtree(folder)
    assert due(study_folder, *plants, confirm=False) is None


def test_what_the_fresh_launches_say_does_not_reopen_the_question(study_folder: Make) -> None:
    """The chosen one turns out slow, and noisy: main launches alone decide what is due."""
    fresh = {k: 0.05 * (1 + 0.2 * (k % 2)) for k in range(CONFIRM_FROM, CONFIRM_FROM + 6)}
    plants = [*exact(0.06, extra=fresh), Plant(make_case("horovod", "mpi", 2), 0.055, launch_sd=1e-4, extra=fresh)]
    assert due(study_folder, *plants, stop_when="verdict") is None


def test_a_study_without_a_sound_launch_needs_nothing(study_folder: Make) -> None:
    assert due(study_folder, *noisy(0.05, launches=0), stop_when="verdict") is None
