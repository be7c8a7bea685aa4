"""Simulated studies of equal contestants: their rates, and that a method that is wrong would be caught."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis import simulate, stats
from analysis.simulate import Draw


def recorded(launches: int = 12, contestants: int = 4, spikes: float = 0.1) -> NDArray[np.float64]:
    """Block seconds with a drift that all share, launch levels of 2 %, noise of 0.5 % and spikes of a third."""
    random = np.random.default_rng(1)
    shape = (contestants, launches, 5)
    logs = 0.1 * random.normal(size=(1, launches, 1)) + 0.02 * random.normal(size=(contestants, launches, 1))
    logs = logs + 0.005 * random.normal(size=shape) + np.where(random.random(shape) < spikes, 0.3, 0.0)
    return np.exp(logs) * np.array([1.0, 1.1, 0.9, 1.2])[:contestants, None, None] * 0.05


@pytest.mark.parametrize("method", [simulate.bootstrap, simulate.parametric])
def test_peeking_at_equal_contestants_keeps_its_rates(method: object) -> None:
    draw: Draw = method(recorded())  # type: ignore[operator]
    found = simulate.calibrate(draw, contestants=3, looks=(6, 9, 14, 20), margin=0.02, studies=300)
    assert found.studies == 300
    # 300 at 5 %: standard deviation 1.3 %.
    assert found.false_verdicts <= 0.075
    assert found.coverage >= 0.925
    assert 6 <= found.launches <= 20


def test_a_level_that_is_not_split_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "simultaneous", lambda level, *_: level)
    draw = simulate.bootstrap(recorded())
    found = simulate.calibrate(draw, contestants=4, looks=(6, 9, 14, 20), margin=0.002, studies=300)
    assert found.false_verdicts > 0.09


def test_the_parametric_draw_has_the_recorded_spread_without_what_all_share() -> None:
    drawn = simulate.parametric(recorded(launches=200, spikes=0.0))(np.random.default_rng(2), 2, 2000)
    logs = stats.hodges_lehmann(drawn[0] - drawn[1])
    assert np.std(logs) == pytest.approx(0.02 * np.sqrt(2), rel=0.15)
    assert np.mean(logs) == pytest.approx(0, abs=0.002)


def test_a_bootstrapped_launch_is_a_recorded_one() -> None:
    blocks = recorded()
    drawn = simulate.bootstrap(blocks)(np.random.default_rng(3), 4, 1)[:, 0]
    logs = np.log(blocks)
    logs -= logs.mean(axis=(1, 2), keepdims=True)
    same = [k for k in range(12) if np.allclose(np.sort(drawn, axis=0), np.sort(logs[:, k], axis=0))]
    assert len(same) == 1


def test_more_contestants_than_were_recorded_are_refused() -> None:
    with pytest.raises(ValueError, match="5 contestants cannot be drawn from 4"):
        simulate.bootstrap(recorded())(np.random.default_rng(0), 5, 6)


def test_the_same_seed_gives_the_same_studies() -> None:
    draw = simulate.bootstrap(recorded())
    one, other = (simulate.calibrate(draw, contestants=2, looks=(6,), margin=0.02, studies=20) for _ in range(2))
    assert one == other
