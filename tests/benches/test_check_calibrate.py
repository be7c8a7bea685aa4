"""The calibration check: contrasts, counting, and simulated studies of planted block times."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import stats
from benches.checks import calibrate


def planted(launches: int, level: float = 0.01, faster: float = 0.0) -> np.ndarray:
    """Block seconds of four contestants, the first of which is faster by a share."""
    random = np.random.default_rng(3)
    logs = random.normal(0, level, (4, launches, 1)) + random.normal(0, 0.005, (4, launches, 5))
    logs[0] -= faster
    return np.exp(logs)


def test_contrasts_are_orthogonal_and_as_wide_as_a_ratio() -> None:
    products = calibrate.CONTRASTS @ calibrate.CONTRASTS.T
    assert products == pytest.approx(2 * np.eye(3))
    assert calibrate.CONTRASTS.sum(axis=1) == pytest.approx(np.zeros(3))


def test_the_first_contrast_is_the_ratio_that_a_study_judges() -> None:
    times = planted(6)
    assert calibrate.values(times)[0] == pytest.approx(stats.log_ratios(times[0], times[1]))


def test_what_hits_all_alike_cancels() -> None:
    times = planted(6)
    assert calibrate.values(times * np.linspace(1, 2, 6)[:, None]) == pytest.approx(calibrate.values(times))


def test_launches_are_cut_into_whole_duels() -> None:
    values = np.arange(21, dtype=float).reshape(3, 7)
    found = calibrate.intervals(values, 3)
    assert [one.n for one in found] == [3] * 6
    assert np.log([one.value for one in found]) == pytest.approx([1, 4, 8, 11, 15, 18])


def test_the_bar_is_eleven_of_120_and_shrinks_with_the_duels() -> None:
    assert calibrate.most_called(120) == 11
    assert calibrate.most_called(30) < 5


def test_a_small_difference_that_lasts_fails_though_few_duels_call_it() -> None:
    equal, unequal = (calibrate.values(planted(80, faster=faster)) for faster in (0.0, 0.01))
    assert [line.holds for line in calibrate.bias_lines(equal)] == [True] * 3
    found = calibrate.bias_lines(unequal)
    assert [line.holds for line in found] == [False, True, False]
    assert found[0].what == "a ÷ b of all short heats"
    assert calibrate.called_line(calibrate.intervals(unequal, 2), 2, 120).holds
    assert [line.holds for line in calibrate.bias_lines(equal[:, :1])] == [False] * 3


def test_fewer_duels_than_were_asked_for_are_no_success() -> None:
    found = calibrate.intervals(calibrate.values(planted(60)), 6)
    assert calibrate.called_line(found, 6, asked=30).holds
    assert calibrate.called_line(found, 6, asked=33).holds is False


def test_equal_ones_pass_and_a_faster_one_is_called_different() -> None:
    equal, unequal = (calibrate.intervals(calibrate.values(planted(60, faster=f)), 6) for f in (0.0, 0.1))
    assert calibrate.called_line(equal, 6, 30).holds
    found = calibrate.called_line(unequal, 6, 30)
    assert found.value.startswith(("20 of 30", "21 of 30"))
    assert found.holds is False


def test_no_duel_is_no_success() -> None:
    assert calibrate.called_line([], 6, 3).holds is False
    assert calibrate.width_line([]).holds is False
    assert [line.holds for line in calibrate.simulated(planted(1), 10, 0.02)] == [False]


def test_a_method_that_never_decides_fails() -> None:
    narrow, wide = (
        calibrate.width_line(calibrate.intervals(calibrate.values(planted(12, s)), 6)) for s in (0.005, 0.1)
    )
    assert narrow.holds
    assert wide.holds is False


@pytest.mark.parametrize(("launches", "how"), [(8, "parametric"), (24, "bootstrap")])
def test_simulated_studies_count_each_study_once(launches: int, how: str) -> None:
    false, covered, _, _ = calibrate.simulated(planted(launches), 40, 0.02)
    assert how in false.what
    assert "looks at 6, 9, 14, 20" in false.what
    assert false.n == covered.n == 40
    assert false.value.endswith(" of 40")
