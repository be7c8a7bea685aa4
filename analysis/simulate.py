"""Studies of equal contestants, made from recorded block times: how often would a verdict have been false?

Nothing is fitted to the method: a launch of a simulated study is a recorded one, with its level, its rounds and their
spikes, so launch structure stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.components import components
from analysis.estimate import Estimate

Draw = Callable[[np.random.Generator, int, int], NDArray[np.float64]]
"""(generator, contestants, launches) to log step times, shape (contestants, launches, rounds); all are equal."""


@dataclass(frozen=True)
class Calibration:
    """Shares of the simulated studies; a study counts once, however many comparisons it has."""

    studies: int
    false_verdicts: float
    """With at least one slower or faster among its verdicts."""
    coverage: float
    """With all intervals, as they stood at the end, around 1."""
    half_width: float
    """Median over all intervals at the end, a fraction."""
    launches: float
    """Mean number at which a study stopped."""


def bootstrap(blocks: NDArray[np.float64]) -> Draw:
    """Draws launches of equal contestants from recorded ones (Efron 1979), with replacement.

    blocks: seconds of blocks, shape (contestants, launches, rounds): contestants of one heat, paired along the other
    axes; NaN where a block is missing. A drawn launch is one recorded launch of the whole heat, so that what hit all
    alike still does, with the contestants in random order, so that no one is faster than another; before that each
    contestant's own level, its mean log over all launches, is taken off. Simulated contestants beyond the recorded ones
    are refused with ValueError.
    """
    logs = np.log(blocks)
    logs = logs - np.nanmean(logs, axis=(1, 2), keepdims=True)

    def draw(random: np.random.Generator, contestants: int, launches: int) -> NDArray[np.float64]:
        if contestants > len(logs):
            raise ValueError(f"{contestants} contestants cannot be drawn from {len(logs)} that were recorded")
        chosen = random.integers(logs.shape[1], size=launches)
        order = np.argsort(random.random((launches, len(logs))), axis=1)[:, :contestants]
        return np.stack([logs[who, which] for who, which in zip(order, chosen, strict=True)], axis=1)

    return draw


def parametric(blocks: NDArray[np.float64]) -> Draw:
    """Draws normal launch levels, and residuals of blocks as they were recorded, spikes and all.

    blocks: as for `bootstrap`. Between launches the standard deviation is the random-effects one, over contestants by
    their mean square, freed of what they share in a launch; residuals are log times less their launch's mean, scaled up
    by √(rounds/(rounds − 1)) for that. For few recorded launches, whose bootstrap repeats itself.
    """
    logs = np.log(blocks)
    rounds = logs.shape[2]
    own = logs - np.nanmean(logs, axis=0, keepdims=True) if len(logs) > 1 else logs
    freed = len(logs) / max(len(logs) - 1, 1)
    between = np.sqrt(np.mean([(components(one).between or 0.0) ** 2 for one in own]) * freed)
    residuals = (own - np.nanmean(own, axis=2, keepdims=True)).ravel()
    residuals = residuals[~np.isnan(residuals)] * np.sqrt(freed * rounds / max(rounds - 1, 1))

    def draw(random: np.random.Generator, contestants: int, launches: int) -> NDArray[np.float64]:
        levels = random.normal(0.0, between, (contestants, launches, 1))
        return levels + random.choice(residuals, (contestants, launches, rounds))

    return draw


def calibrate(
    draw: Draw,
    *,
    contestants: int,
    looks: Sequence[int],
    margin: float,
    stop_when: float | str | None = "verdict",
    studies: int = 2000,
    seed: int = 0,
) -> Calibration:
    """Run studies in which contestant 0 is the reference, looking after `looks` launches and stopping when settled."""
    random = np.random.default_rng(seed)
    level = stats.simultaneous(stats.LEVEL, contestants - 1, len(looks))
    false, covered, widths, stopped = 0, 0, [], []
    for _ in range(studies):
        logs = draw(random, contestants, looks[-1])
        for look in looks:
            ratios = [_ratio(logs[one, :look], logs[0, :look], level) for one in range(1, contestants)]
            if stop_when is not None and stats.settled(ratios, stop_when, margin):
                break
        false += any(stats.verdict(ratio, margin) in ("slower", "faster") for ratio in ratios)
        covered += all(stats.direction(ratio) is None for ratio in ratios)
        widths += [stats.half_width(ratio) for ratio in ratios]
        stopped.append(look)
    return Calibration(studies, false / studies, covered / studies, float(np.median(widths)), float(np.mean(stopped)))


def _ratio(a: NDArray[np.float64], b: NDArray[np.float64], level: float) -> Estimate:
    logs = stats.hodges_lehmann(a - b)
    return stats.ratio_of_pairs(logs[~np.isnan(logs)], level)
