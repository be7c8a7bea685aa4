"""The A/A control: silent on equal copies, and what a planted difference does to the verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from planted import Plant, header, make_case

from analysis import headline, stats, summary, table
from analysis.compare import Comparison
from analysis.components import Components
from analysis.estimate import Estimate
from analysis.noise import Control, weigh
from analysis.rows import Summary
from benches import record
from benches.spec import AGAIN_FROM

Make = Callable[..., Path]
DDP = make_case("ddp", "gloo", 2)
AGAIN = range(AGAIN_FROM, AGAIN_FROM + 6)


def reduced(make: Make, copy_s: float, again: Sequence[float] = (), rival_s: float = 0.06, sd: float = 1e-4) -> Summary:
    """ddp/gloo at 0.05 s a step, its copy, and a rival; again: of the copy in the second set of launches."""
    plants = [
        Plant(DDP, 0.05, launch_sd=sd, extra=dict.fromkeys(AGAIN, 0.05) if again else {}),
        Plant(make_case("horovod", "gloo", 2), rival_s, launch_sd=sd),
        Plant(DDP, copy_s, name="ddp (again)", copy=1, launch_sd=sd, extra=dict(zip(AGAIN, again, strict=False))),
    ]
    return summary.reduce(table.read(make(plants, launches=6)))


def test_an_equal_copy_is_quiet_and_in_no_table(study_folder: Make) -> None:
    found = reduced(study_folder, 0.05)
    (control,) = found.controls
    assert (control.state, control.established, control.again) == ("quiet", True, None)
    assert control.comparison.ratio.level == stats.CONTROL_LEVEL
    assert [row.index for row in found.rows] == [0, 1]
    assert len(found.plain()["contestants"]) == 2
    assert [(c.a, c.b) for c in found.comparisons] == [(1, 0)]
    (line,) = headline.headlines(found)
    assert ", A/A ±0." in line
    assert headline.noise_lines(found)[0].startswith("A/A control, resnet18_64, 2 ranks: a copy of ddp/gloo ")
    assert not any("A/A" in warning or "noise floor" in warning for warning in found.warnings)


def test_a_copy_that_is_off_by_three_per_cent_is_suspicious(study_folder: Make) -> None:
    found = reduced(study_folder, 0.0515)
    assert found.controls[0].state == "suspicious"
    assert found.comparisons[0].verdict == "slower", "not before it is confirmed"
    assert any("a further set of launches is to check that" in warning for warning in found.warnings)
    assert found.plain()["control"][0]["ratio"]["value"] == pytest.approx(1.03, rel=0.005)
    assert found.plain()["control"][0]["state"] == "suspicious"


def test_confirmed_it_takes_smaller_verdicts_and_leaves_larger_ones(study_folder: Make, tmp_path: Path) -> None:
    large = reduced(study_folder, 0.0515, again=[0.0515] * 6)
    assert large.controls[0].state == "confirmed"
    assert (large.comparisons[0].verdict, large.comparisons[0].marks) == ("slower", ("A/A",))
    assert any("further launches confirm it: verdicts that ±3." in warning for warning in large.warnings)


def test_confirmed_it_makes_a_small_difference_inconclusive(study_folder: Make) -> None:
    small = reduced(study_folder, 0.0515, again=[0.0515] * 6, rival_s=0.0514)
    assert small.comparisons[0].ratio.low > 1
    assert (small.comparisons[0].verdict, small.comparisons[0].direction) == ("inconclusive", None)
    assert small.questions[0].comparison.verdict == "inconclusive"
    assert "no verdict yet between horovod/gloo and ddp/gloo" in headline.answers(small)[0]


def test_chance_is_cleared_by_further_launches(study_folder: Make) -> None:
    found = reduced(study_folder, 0.0515, again=[0.05] * 6, rival_s=0.0514)
    assert found.controls[0].state == "cleared"
    assert found.comparisons[0].verdict == "slower"


def test_a_set_that_is_over_clears_though_a_launch_of_it_failed(study_folder: Make) -> None:
    plants = [
        Plant(DDP, 0.05, launch_sd=1e-4, extra=dict.fromkeys(AGAIN, 0.05)),
        Plant(make_case("horovod", "gloo", 2), 0.06, launch_sd=1e-4),
        Plant(DDP, 0.0515, name="ddp (again)", copy=1, launch_sd=1e-4, extra=dict.fromkeys(AGAIN[:-1], 0.05)),
    ]
    folder = study_folder(plants, launches=6)
    assert summary.reduce(table.read(folder)).controls[0].state == "suspicious"
    failed = header(DDP, AGAIN[-1], status="failed", reason="rank 0: killed by SIGKILL")
    record.write(folder / "launches" / f"{DDP.id}-1" / str(AGAIN[-1]), failed, None)
    assert summary.reduce(table.read(folder)).controls[0].state == "cleared"


def test_a_noisy_control_says_that_the_floor_is_not_established(study_folder: Make) -> None:
    found = reduced(study_folder, 0.05, sd=0.03)
    assert not found.controls[0].established
    (said,) = [warning for warning in found.warnings if warning.startswith("noise floor not established")]
    assert "the margin is 2 %; raise study.launches (about " in said
    assert "noise floor not established" in headline.noise_lines(found)[0]


def test_a_control_that_failed_is_told(study_folder: Make) -> None:
    plants = [
        Plant(DDP, 0.05),
        Plant(make_case("horovod", "gloo", 2), 0.06),
        Plant(DDP, 0.05, name="ddp (again)", copy=1, launches=0),
    ]
    found = summary.reduce(table.read(study_folder(plants)))
    assert found.plain()["control"] is None
    assert any(warning.startswith("no A/A control") for warning in found.warnings)


def ratio(low: float, high: float) -> Estimate:
    return Estimate(math.sqrt(low * high), low, high, 0.95, 6, "ratio")


def comparison(low: float, high: float) -> Comparison:
    found = ratio(low, high)
    word, direction = stats.verdict(found, 0.02), stats.direction(found)
    return Comparison(0, 1, found, word, direction, False, Components(None, None))


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.04, 1.06, "slower"),
        (1.02, 1.04, "inconclusive"),
        (0.9, 0.95, "faster"),
        (0.95, 0.98, "inconclusive"),
        (0.999, 1.001, "inconclusive"),
        (1.012, 1.019, "inconclusive"),
        (0.9, 1.1, "inconclusive"),
    ],
)
def test_what_the_controls_outer_bound_could_undo(low: float, high: float, word: str) -> None:
    biased = Control(comparison(1.01, 1.02), again=ratio(1.005, 1.03), margin=0.02)
    assert biased.outer == 1.03
    assert weigh(comparison(low, high), biased).verdict == word


def test_a_small_bias_leaves_an_equivalence_that_is_tight() -> None:
    biased = Control(comparison(1.001, 1.003), again=ratio(1.001, 1.004), margin=0.02)
    assert weigh(comparison(0.995, 1.005), biased).verdict == "equivalent"


def test_a_direction_that_the_bias_could_make_is_not_told() -> None:
    biased = Control(comparison(1.001, 1.003), again=ratio(1.001, 1.004), margin=0.02)
    leaning = comparison(1.001, 1.005)
    assert leaning.direction == "slower"
    found = weigh(leaning, biased)
    assert (found.verdict, found.direction) == ("equivalent", None)


@pytest.mark.parametrize("again", [[0.05, 0.0501], [0.05] * 3, [0.05] * 5])
def test_an_unfinished_second_set_clears_nothing(study_folder: Make, again: list[float]) -> None:
    """Three launches have a t quantile of 9.9 at 99 %: their interval holds almost anything."""
    assert reduced(study_folder, 0.0515, again=again).controls[0].state == "suspicious"


def test_half_a_second_set_is_heard(study_folder: Make) -> None:
    assert reduced(study_folder, 0.0515, again=[0.0515] * 3).controls[0].state == "confirmed"
