"""The parking check: what it makes of recorded times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis import stats
from benches.checks import parking


def test_a_drift_cancels_and_company_does_not() -> None:
    outer = 4
    drift = np.exp(np.linspace(0, 0.08, 4 * outer))
    company = np.ones(4 * outer)
    company[outer : 3 * outer] = 1.03
    values = parking.company(np.stack([drift, drift * company]), outer)
    assert values == pytest.approx([0, np.log(1.03)], abs=0.004)


def test_the_first_block_of_each_phase_does_not_count() -> None:
    times = np.ones((1, 16))
    times[0, [0, 4, 12]] = 9.0
    assert parking.company(times, 4) == pytest.approx([0])


def test_launches_that_are_not_whole_are_no_launches() -> None:
    times = np.ones((2, 16))
    times[0] = np.nan
    assert len(parking.company(times, 4)) == 1
    assert len(parking.company(np.ones((2, 15)), 4)) == 0


def test_first_steps_are_those_of_the_slowest_rank_after_a_park() -> None:
    rows = [
        ("step", rank, block, step, (2.0 if step == 0 and block == 1 else 1.0) * (1 + rank))
        for rank in (0, 1)
        for block in (0, 1, 2)
        for step in range(5)
    ]
    rows.append(("block", 0, 1, -1, 99.0))
    samples = pd.DataFrame(rows, columns=["kind", "rank", "block", "step", "seconds"])
    assert parking.resumed(samples, [1, 2]) == pytest.approx([np.log(2), 0])


@pytest.mark.parametrize(
    ("status", "parked", "outlived"),
    [
        ("ok", [1.2, 40.5, 121.0], True),
        ("ok", [1.2, 39.0, 121.0], False),
        ("ok", [1.2, 40.5], False),
        ("failed", [1.2, 40.5, 121.0], False),
    ],
)
def test_a_launch_has_survived_when_it_ended_well_after_all_parks(
    status: str, parked: list[float], outlived: bool
) -> None:
    assert parking.outlived(status, parked, (1.0, 40.0, 120.0)) is outlived


@pytest.mark.parametrize(("launches", "holds"), [(6, True), (5, False), (0, False)])
def test_too_few_launches_fail(launches: int, holds: bool) -> None:
    assert parking._judged("", np.full(launches, 0.001), "", 0.02).holds is holds


def test_the_whole_interval_must_lie_inside() -> None:
    narrow, wide = stats.ratio_of_pairs([0.001] * 5 + [0.002]), stats.ratio_of_pairs([-0.04, 0.04, 0.0])
    assert parking.inside(narrow, 0.02)
    assert not parking.inside(wide, 0.02)


def test_steps_of_a_skewed_distribution_are_no_slow_first_ones() -> None:
    random = np.random.default_rng(5)
    shape = (4000, 20)
    seconds = random.choice([2.0, 4.0, 6.0], size=shape, p=[0.6, 0.3, 0.1])
    block, step = np.indices(shape)
    columns = {"kind": "step", "rank": 0, "block": block.ravel(), "step": step.ravel(), "seconds": seconds.ravel()}
    assert abs(parking.resumed(pd.DataFrame(columns), range(shape[0])).mean()) < 0.03
