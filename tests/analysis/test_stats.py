"""Statistics on arrays: hand-computed values, invariances, and how often a planted ratio is recovered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import distributions

from analysis import stats
from analysis.components import Components, components
from analysis.estimate import Estimate

seconds = st.floats(1e-6, 1e4)
times = st.lists(seconds, min_size=1, max_size=12)


def ratio(low: float, high: float) -> Estimate:
    return Estimate(math.sqrt(low * high), low, high, 0.95, 6, "ratio")


def test_throughput_by_hand() -> None:
    # Two blocks of 20 steps, 2 ranks × 16 images: 640 images each, in 4 s and 6 s on the slowest rank.
    assert stats.throughput([640, 640], [4.0, 6.0]) == 128.0


@given(times, st.integers(1, 64), st.integers(1, 5))
def test_throughput_does_not_depend_on_how_steps_are_split_in_blocks(
    step_s: list[float], samples: int, size: int
) -> None:
    whole = stats.throughput([samples * len(step_s)], [sum(step_s)])
    parts = [step_s[i : i + size] for i in range(0, len(step_s), size)]
    split = stats.throughput([samples * len(part) for part in parts], [sum(part) for part in parts])
    assert split == pytest.approx(whole)


@given(times, st.integers(1, 50))
def test_step_time_is_samples_a_step_over_throughput(walls: list[float], steps: int) -> None:
    samples = [32 * steps] * len(walls)
    assert stats.step_time([steps] * len(walls), walls) == pytest.approx(32 / stats.throughput(samples, walls))


def test_median_of_launches_by_hand() -> None:
    found = stats.median_of_launches([3.0, 1.0, 2.0], "s")
    assert found == Estimate(2.0, 1.0, 3.0, 0.75, 3, "s")
    assert stats.median_of_launches([5.0], "s").level == 0


def test_the_spread_holds_the_median_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    for n in (3, 5):
        found = [stats.median_of_launches(random.lognormal(0, 0.5, n), "s") for _ in range(2000)]
        share = np.mean([estimate.low <= 1 <= estimate.high for estimate in found])
        assert share == pytest.approx(found[0].level, abs=0.03)


def test_ratio_of_pairs_by_hand() -> None:
    # Mean 0.1, sd 0.1, n = 4: half-width 3.182446 · 0.1/2.
    found = stats.ratio_of_pairs(np.array([0.0, 0.0, 0.2, 0.2]) * math.sqrt(0.75) + 0.1 * (1 - math.sqrt(0.75)))
    assert found.value == pytest.approx(math.exp(0.1))
    assert found.low == pytest.approx(math.exp(0.1 - 3.182446 * 0.05), rel=1e-6)
    assert found.high == pytest.approx(math.exp(0.1 + 3.182446 * 0.05), rel=1e-6)
    assert (found.n, found.level, found.unit) == (4, 0.95, "ratio")


def test_one_pair_gives_no_interval_and_no_verdict() -> None:
    found = stats.ratio_of_pairs([0.7])
    assert (found.low, found.high) == (0.0, math.inf)
    assert stats.verdict(found, 0.02) == "inconclusive"
    assert found.plain() | {"value": 0, "level": 0} == {
        "value": 0, "low": 0.0, "high": None, "level": 0, "n": 1, "unit": "ratio",
    }  # fmt: skip


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=10))
def test_a_to_b_is_the_inverse_of_b_to_a(logs: list[float]) -> None:
    there, back = stats.ratio_of_pairs(logs), stats.ratio_of_pairs([-log for log in logs])
    assert there.value * back.value == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_scaling_all_times_scales_estimates_and_leaves_ratios(pairs: list[tuple[float, float]], c: float) -> None:
    a, b = np.array(pairs).T
    before, after = stats.median_of_launches(a, "s"), stats.median_of_launches(a * c, "s")
    assert (after.value, after.low, after.high) == pytest.approx(
        (before.value * c, before.low * c, before.high * c), rel=1e-9
    )
    logs = [stats.log_ratios(x[:, None], y[:, None]) for x, y in ((a, b), (a * c, b * c))]
    assert logs[1] == pytest.approx(logs[0], abs=1e-9)


def test_log_ratios_pair_blocks_and_skip_those_that_are_missing() -> None:
    a = np.array([[2.0, 8.0], [3.0, np.nan], [np.nan, 1.0]])
    b = np.array([[1.0, 2.0], [1.0, 1.0], [1.0, np.nan]])
    found = stats.log_ratios(a, b)
    assert found[:2] == pytest.approx([math.log(8) / 2, math.log(3)])
    assert math.isnan(found[2])


@pytest.mark.parametrize(
    ("low", "high", "word", "direction"),
    [
        (0.99, 1.01, "equivalent", None),
        (1.005, 1.015, "equivalent", "slower"),
        (0.985, 0.995, "equivalent", "faster"),
        (1 / 1.02, 1.02, "equivalent", None),
        (1.001, 1.03, "slower", "slower"),
        (1.1, 1.2, "slower", "slower"),
        (0.8, 0.9, "faster", "faster"),
        (0.9, 1.01, "inconclusive", None),
        (1.0, 1.03, "inconclusive", None),
    ],
)
def test_verdict(low: float, high: float, word: str, direction: str | None) -> None:
    assert stats.verdict(ratio(low, high), 0.02) == word
    assert stats.direction(ratio(low, high)) == direction


@given(st.integers(0, 500))
def test_simultaneous_levels_add_up_to_the_error_of_the_study(count: int) -> None:
    level = stats.simultaneous(0.95, count)
    assert (1 - level) * max(count, 1) == pytest.approx(0.05)


@pytest.mark.parametrize(("launches", "true"), [(3, 1.0), (6, 1.03)])
def test_a_planted_ratio_is_recovered_at_the_stated_rate(launches: int, true: float) -> None:
    random = np.random.default_rng(11)
    hits = []
    for _ in range(1000):
        level = random.normal(0, 0.02, (2, launches, 1))
        a, b = np.exp(level + random.normal(0, 0.01, (2, launches, 4))) * np.array([true, 1.0])[:, None, None]
        found = stats.ratio_of_pairs(stats.log_ratios(a, b))
        hits.append(found.low <= true <= found.high)
    # Binomial, 1000 at 0.95: standard deviation 0.7 %.
    assert 0.925 <= np.mean(hits) <= 0.975


def test_hodges_lehmann_by_hand_and_without_what_is_missing() -> None:
    # Pairwise means of 0, 2, 10: 0, 1, 2, 5, 6, 10.
    values = np.array([[0.0, 2.0, 10.0], [0.0, 2.0, np.nan], [np.nan] * 3])
    assert stats.hodges_lehmann(values)[:2].tolist() == [3.5, 1.0]
    assert math.isnan(stats.hodges_lehmann(values)[2])
    assert stats.hodges_lehmann(np.empty((1, 0))).shape == (1,)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=9), st.floats(-5, 5))
def test_hodges_lehmann_moves_and_turns_with_the_values(values: list[float], shift: float) -> None:
    x = np.array([values])
    (found,) = stats.hodges_lehmann(x)
    assert stats.hodges_lehmann(x + shift)[0] == pytest.approx(found + shift, abs=1e-9)
    assert stats.hodges_lehmann(-x)[0] == pytest.approx(-found, abs=1e-9)


def test_a_level_is_split_over_comparisons_and_looks() -> None:
    assert stats.simultaneous(0.95, 3, 4) == pytest.approx(1 - 0.05 / 12)


def test_half_widths() -> None:
    assert stats.half_width(ratio(1 / 1.03, 1.03)) == pytest.approx(0.03)
    assert stats.half_width(stats.ratio_of_pairs([0.1])) == math.inf


@pytest.mark.parametrize(
    ("ratios", "stop_when", "is_settled"),
    [
        ([(1.1, 1.2), (0.99, 1.01)], "verdict", True),
        ([(1.1, 1.2), (0.9, 1.01)], "verdict", False),
        ([(1.1, 1.2)], 0.05, True),
        ([(1.1, 1.2)], 0.04, False),
        ([], 0.04, True),
    ],
)
def test_settled(ratios: list[tuple[float, float]], stop_when: float | str, is_settled: bool) -> None:
    assert stats.settled([ratio(*bounds) for bounds in ratios], stop_when, 0.02) == is_settled


def test_variance_components_by_hand() -> None:
    # Means 1, 3; within 2 each (MSW 2); MSB = 2·(1 + 1) = 4; between² = (4 − 2)/2.
    found = components([[0.0, 2.0], [2.0, 4.0]])
    assert (found.within, found.between) == (pytest.approx(math.sqrt(2)), pytest.approx(1.0))


def test_unequal_launches_and_what_blocks_cannot_tell() -> None:
    # 0, 2 | 5: MSW 2, MSB 2·1·(1 − 5)²/3 = 32/3, n₀ = 3 − 5/3.
    found = components([[0.0, 2.0], [5.0, np.nan], [np.nan, np.nan]])
    assert found.between == pytest.approx(math.sqrt((32 / 3 - 2) / (4 / 3)))
    assert components([[1.0], [2.0]]) == Components(None, None)
    assert components([[1.0, 2.0]]).between is None
    assert components(np.empty((0, 0))) == Components(None, None)


def test_planted_components_are_recovered() -> None:
    random = np.random.default_rng(4)
    found = components(random.normal(0, 0.03, (400, 1)) + random.normal(0, 0.01, (400, 5)))
    assert found.within == pytest.approx(0.01, rel=0.05)
    assert found.between == pytest.approx(0.03, rel=0.1)


@given(st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=8).filter(lambda logs: np.std(logs) > 1e-3))
def test_launches_for_is_the_first_number_whose_interval_is_narrow_enough(logs: list[float]) -> None:
    ratio = stats.ratio_of_pairs(logs, 0.99)
    target = float(np.std(logs, ddof=1))
    needed = stats.launches_for(ratio, target)
    assert needed is not None

    def half(n: int) -> float:
        return float(distributions.t.ppf(0.995, n - 1)) * float(np.std(logs, ddof=1)) / np.sqrt(n)

    assert half(needed) <= target * (1 + 1e-9)
    assert needed == 2 or half(needed - 1) > target * (1 - 1e-9)


def test_beyond_what_is_advice_there_is_no_number() -> None:
    assert stats.launches_for(stats.ratio_of_pairs([0.0, 0.2, -0.2]), 1e-4) is None


@given(st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=8).filter(lambda logs: np.std(logs[:3]) > 1e-3))
def test_with_as_many_launches_as_planned_the_interval_is_as_wide_as_planned(logs: list[float]) -> None:
    first = stats.ratio_of_pairs(logs[:3])
    half = stats.log_half(first) / 3
    planned = stats.launches_in_two_stages(first, half)
    assert planned == pytest.approx(27, abs=1)
    # Whatever the launches that follow are.
    following = np.resize(logs, planned - 3)
    assert stats.log_half(stats.ratio_in_two_stages([*logs[:3], *following], 3)) <= half * (1 + 1e-9)


def test_a_planned_interval_covers_as_often_as_it_says_and_the_plain_one_does_not() -> None:
    random, half = np.random.default_rng(3), 0.01
    covered = {"two stages": 0, "plain": 0}
    for _ in range(4000):
        logs = random.normal(0, 0.019, 2000)
        planned = stats.launches_in_two_stages(stats.ratio_of_pairs(logs[:4]), half)
        assert planned < len(logs)
        of_both = stats.ratio_in_two_stages(logs[:planned], 4), stats.ratio_of_pairs(logs[:planned])
        for name, ratio in zip(covered, of_both, strict=True):
            covered[name] += ratio.low <= 1 <= ratio.high
    # Three standard deviations of 4,000 draws: 1 %.
    assert abs(covered["two stages"] / 4000 - 0.95) < 0.0104
    assert covered["plain"] / 4000 < 0.935


def test_without_more_than_the_first_launches_both_intervals_are_one() -> None:
    planned, plain = (
        of([0.01, -0.02, 0.03]) for of in (lambda logs: stats.ratio_in_two_stages(logs, 3), stats.ratio_of_pairs)
    )
    assert (planned.n, planned.level) == (plain.n, plain.level)
    assert (planned.value, planned.low, planned.high) == pytest.approx((plain.value, plain.low, plain.high))
