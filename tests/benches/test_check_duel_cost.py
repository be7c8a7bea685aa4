"""What an interval costs: planted noise of launches and blocks, and the time that follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis import stats
from benches.checks import duel_cost
from benches.checks.duel_cost import Cost, Measured


def noise(launches: int, rounds: int, between: float = 0.0, within: float = 0.0) -> NDArray[np.float64]:
    random = np.random.default_rng(5)
    return np.exp(random.normal(0, between, (3, launches, 1)) + random.normal(0, within, (3, launches, rounds)))


def test_contrasts_are_orthogonal_and_as_wide_as_a_ratio() -> None:
    products = duel_cost.CONTRASTS @ duel_cost.CONTRASTS.T
    assert products == pytest.approx(2 * np.eye(2))
    assert duel_cost.CONTRASTS.sum(axis=1) == pytest.approx(np.zeros(2))


def test_the_least_number_of_launches_is_the_least() -> None:
    spread = 0.02
    cost = duel_cost.paired("duel", noise(400, 1, between=spread / 2**0.5), 10.0, 4, half_width=0.02)
    n = cost.needed
    logs = np.random.default_rng(1).normal(size=n)
    logs = (logs - logs.mean()) / logs.std(ddof=1) * spread
    # About: the spread itself is estimated.
    assert stats.half_width(stats.ratio_of_pairs(logs)) == pytest.approx(0.02, rel=0.15)
    assert cost.time_s == 10.0 * n


def test_spread_that_is_not_known_or_too_large_gives_no_time() -> None:
    assert duel_cost.least(lambda _: math.nan, 0.02) == 0
    assert duel_cost.paired("duel", noise(0, 2), 10.0, 4, 0.02).time_s == math.inf
    assert duel_cost.one_run("one", noise(0, 0), 10.0, 0.2, 0.02).time_s == math.inf
    assert duel_cost.in_turn("A, B, C", noise(0, 0), 10.0, 4, 0.02).time_s == math.inf


def test_equal_launches_are_rarely_called_different() -> None:
    cost = duel_cost.paired("duel", noise(200, 4, between=0.02, within=0.01), 10.0, 4, 0.02)
    assert cost.contrasts == 100
    assert cost.false <= 12


def test_blocks_of_one_run_mistake_the_launch_for_the_contestant() -> None:
    times = noise(50, 10, between=0.02, within=0.005)
    cost = duel_cost.one_run("one run of each", times, 30.0, 0.2, 0.02)
    assert cost.contrasts == 100
    assert cost.false > 60
    # 24 s of start-up, and three times so many blocks.
    assert cost.time_s == pytest.approx(24 + 3 * cost.needed * 0.2)


def test_a_drift_between_groups_is_taken_for_a_difference() -> None:
    size, cycles = 4, 5
    times = noise(size * cycles, 1, between=0.001)
    slower = times * np.array([1.0, 1.1, 1.2])[:, None, None]
    assert duel_cost.in_turn("A, B, C", times, 10.0, size, 0.02).false <= 2
    drifted = duel_cost.in_turn("A, B, C", slower, 10.0, size, 0.02)
    assert drifted.false == drifted.contrasts == 2 * cycles
    assert drifted.needed > 2


def test_the_duel_must_be_quicker_than_all_but_one_run_of_each() -> None:
    def found(duel_s: float) -> list[Cost]:
        times = {"duel": duel_s, "relaunch": 100.0, "A, then B, then C": 300.0, "one run of each": 10.0}
        return [Cost(name, 8, 4, seconds, 0, 4) for name, seconds in times.items()]

    def table(costs: list[Cost]) -> list[duel_cost.Line]:
        return duel_cost.lines(costs, np.full(10, duel_cost.advantage(costs)), 0.02)

    *rows, good = table(found(50.0))
    assert good.value == "2.00 times"
    assert good.holds
    assert rows[-1].value == "10 s (4 blocks)"
    assert table(found(150.0))[-1].holds is False
    assert table(found(math.inf))[-1].holds is False
    unknown = [Cost(one.name, 0, 0, math.inf, 0, 0) for one in found(50.0)]
    assert table(unknown)[-1].holds is False
    assert duel_cost.advantage(found(50.0)) == 2
    assert duel_cost.advantage(found(200.0)) == 0.5
    assert duel_cost.advantage(found(math.inf)) == 0
    assert duel_cost.advantage([Cost(one.name, 0, 0, math.inf, 0, 0) for one in found(50.0)]) == 0


def measured(launches: int, duel_sd: float) -> list[Measured]:
    """A duel and three others whose launches of 10 s each have 2 % of noise."""
    sds = {"duel": duel_sd, "relaunch": 0.02, "A, then B, then C": 0.02, "one run of each": 0.02}
    found = [Measured(name, noise(launches, 2, sd, 0.002), np.full(launches, 10.0)) for name, sd in sds.items()]
    return [replace(one, size=4) if one.name.startswith("A,") else one for one in found]


@pytest.mark.parametrize(("launches", "holds"), [(7, False), (8, True)])
def test_an_advantage_by_few_launches_is_not_judged_as_one(launches: int, holds: bool) -> None:
    names = ("duel", "relaunch", "A, then B, then C", "one run of each")
    found = [Cost(name, launches, 4, 10.0 if name == "duel" else 20.0, 0, 4) for name in names]
    last = duel_cost.lines(found, np.full(10, 2.0), 0.02)[-1]
    assert (last.n, last.value, last.holds) == (launches, "2.00 times", holds)


@pytest.mark.parametrize(("launches", "duel_sd", "holds"), [(24, 0.005, True), (24, 0.018, False), (24, 0.04, False)])
def test_an_advantage_that_may_be_chance_is_none(launches: int, duel_sd: float, holds: bool) -> None:
    found = measured(launches, duel_sd)
    *_, last = duel_cost.lines(duel_cost.costs(found, 4, 0.02), duel_cost.advantages(found, 4, 0.02, draws=200), 0.02)
    assert last.holds is holds


def test_no_launch_is_no_advantage() -> None:
    found = measured(0, 0.01)
    drawn = duel_cost.advantages(found, 4, 0.02, draws=200)
    assert duel_cost.lines(duel_cost.costs(found, 4, 0.02), drawn, 0.02)[-1].holds is False


def test_a_turn_is_drawn_whole() -> None:
    times = np.arange(24, dtype=float).reshape(1, 8, 3)
    drawn = Measured("A, then B, then C", times, np.ones(2), size=4).drawn(np.random.default_rng(1))
    assert drawn.times.shape == times.shape
    assert {tuple(turn.ravel()) for turn in np.split(drawn.times, 2, axis=1)} <= {
        tuple(turn.ravel()) for turn in np.split(times, 2, axis=1)
    }
