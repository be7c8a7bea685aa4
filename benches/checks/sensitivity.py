"""`make sensitivity`: are true slow-downs found, and how fast? DDP over gloo on two ranks, margin 0.5 %.

What is planted is compute: matrix products before each forward pass (`slowed`). How many make 5 and 2 % follows from a
probe of each model, a duel of many products and of half as many against none: a slow-down far beyond the noise is known
closely, and products add up, which the half shows. A second duel measures the planted ones themselves, as closely as
it can. A slow-down larger than it should be fails, since it would be found too easily.

A try is a study as anybody would run it (A/A control, looks that stop it when it knows), start-up of its ranks
included, with 3 minutes for 5 % and 6 for 2 %. It has found the slow-down where its verdict is `slower` and came within
that time. Tries of all kinds take turns until the time is up.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from analysis import stats, table
from analysis import summary as summaries
from analysis.estimate import Estimate
from benches.checks import duels
from benches.checks.duels import Line
from benches.checks.slowed import slow_down
from benches.schedule import arrange
from benches.spec import Contestant
from launchers.supervise import StopFlag

MARGIN = 0.005
MOST_PLANTED = 1.15
"""Times what was planned."""
MOST_UNEVEN = 0.1
"""Half the probe's products may slow down by so much more or less than half, as a share of that."""
HEAT_S = 20.0
"""A study starts its last launches so long before its time is up, for its budget only says when to start no more."""
GRACE_S = 600.0
"""For the last try and the table, beyond the time that was asked for."""


@dataclass(frozen=True)
class Model:
    """How a model is slowed and how often that is tried."""

    block_steps: int
    probe: int
    """Products that slow it down by about half: far beyond the noise of launches, and products add up."""
    tries: int


MODELS = {"mlp": Model(block_steps=50, probe=200, tries=20), "resnet18_64": Model(block_steps=5, probe=15000, tries=5)}


@dataclass(frozen=True)
class Target:
    """A slow-down, and when it must be found."""

    percent: float
    limit_s: float
    least: float
    """Share of the tries of the MLP that were asked for: so many must find it."""


TARGETS = (Target(5, 180, 18 / 20), Target(2, 360, 14 / 20))


@dataclass(frozen=True)
class Job:
    """One kind of try."""

    model: str
    target: Target
    products: int

    @property
    def title(self) -> str:
        return f"{self.model}, {self.target.percent:g} % within {self.target.limit_s / 60:g} min"


@dataclass(frozen=True)
class Try:
    """What came of one try."""

    job: Job
    verdict: str
    took_s: float
    launches: int

    @property
    def found(self) -> bool:
        return self.verdict == "slower" and self.took_s <= self.job.target.limit_s


def contestants(model: str, products: Sequence[int]) -> list[Contestant]:
    """The model with these numbers of products; 0 is the reference and comes first."""
    base = duels.contestant(model=model, block_steps=MODELS[model].block_steps)
    return [
        msgspec.structs.replace(
            base, name=f"{number} products" if number else "plain", case=slow_down(base.case, number)
        )
        for number in products
    ]


def ratios(
    name: str, model: str, products: Sequence[int], launches: int, folder: Path, stop: StopFlag
) -> list[Estimate]:
    """Step time with each number of products ÷ without any, from one duel of them all; empty where it failed."""
    study = duels.make_study(name, contestants(model, [0, *products]), launches=launches, rounds=8)
    times = duels.complete(duels.step_times(duels.run_study(study, folder, stop)))
    if not times.size:
        return []
    return [stats.ratio_of_pairs(stats.log_ratios(one, times[0])) for one in times[1:]]


def products_for(percent: float, probe: int, ratio: float) -> int:
    """How many products slow a step down by so much, given the ratio of step times that `probe` of them make."""
    return max(1, round(percent / 100 * probe / (ratio - 1)))


def calibrate(model: str, folder: Path, quick: bool, stop: StopFlag) -> tuple[list[Job], list[Line]]:
    """The jobs of a model, and what is known of the slow-downs that are planted in them."""
    probe = MODELS[model].probe
    found = ratios(f"probe-{model}", model, [probe // 2, probe], 2 if quick else 6, folder, stop)
    if not found or min(one.value for one in found) <= 1:
        told = ", ".join(f"{one.value:.4f}" for one in found) or "no launch"
        return [], [Line(f"{model}: {probe // 2}, {probe} products ÷ none", len(found), told, "", "above 1", False)]
    half, whole = found
    jobs = [Job(model, target, products_for(target.percent, probe, whole.value)) for target in TARGETS]
    measured = ratios(f"planted-{model}", model, [job.products for job in jobs], 2 if quick else 6, folder, stop)
    return jobs, [
        additive(model, half, whole),
        *(planted(job, of_probe(whole, job.products / probe), closely=True) for job in jobs),
        *(planted(job, ratio, closely=False) for job, ratio in zip(jobs, measured, strict=False)),
    ]


def additive(model: str, half: Estimate, whole: Estimate) -> Line:
    """Whether half as many products slow down half as much."""
    share = (half.value - 1) / (whole.value - 1)
    bar = f"0.5 within {MOST_UNEVEN:.0%}"
    what = f"{model}: slow-down by half of the probe's products ÷ by all"
    return Line(what, whole.n, f"{share:.3f}", "", bar, abs(share / 0.5 - 1) <= MOST_UNEVEN)


def of_probe(whole: Estimate, share: float) -> Estimate:
    """The ratio that this share of the probe's products makes."""
    low, value, high = (1 + share * (ratio - 1) for ratio in (whole.low, whole.value, whole.high))
    return replace(whole, value=value, low=low, high=high)


def planted(job: Job, ratio: Estimate, *, closely: bool) -> Line:
    """What the slow-down really is. Known closely, by the probe, its whole interval must be as small as it should be;
    measured itself it is known to a per cent or so, and fails where it is shown to be more."""
    how = "by the probe" if closely else "itself"
    most = 1 + MOST_PLANTED * job.target.percent / 100
    what = f"{job.model}: planted {job.target.percent:g} % ({job.products} products), {how}"
    return duels.ratio_line(what, ratio, f"not above {most:.4f}", (ratio.high if closely else ratio.low) <= most)


def attempt(job: Job, number: int, folder: Path, stop: StopFlag) -> Try | None:
    """One study; None where it was interrupted."""
    started = time.monotonic()
    name = f"{job.model}-{job.target.percent:g}-{number}"
    heat = arrange(contestants(job.model, [0, job.products]), {}, max_alive=8, control=True)
    settings = {"launches": 4, "rounds": 5, "margin": MARGIN, "stop_when": "verdict"}
    study = duels.make_study(name, heat, **settings, budget_s=job.target.limit_s - HEAT_S)
    path = duels.run_study(study, folder, stop)
    summary = summaries.reduce(table.read(path))
    if stop.is_set():
        return None
    took_s = time.monotonic() - started
    if not summary.comparisons:
        return Try(job, "no verdict", took_s, 0)
    (comparison,) = summary.comparisons
    return Try(job, comparison.verdict, took_s, comparison.ratio.n)


def attempts(jobs: Sequence[Job], asked: int | None, until: float, folder: Path, stop: StopFlag) -> Iterator[Try]:
    """Tries of all jobs in turn, each `asked` times or as often as its model says, until the time is up."""
    left = {job: wanted(job, asked) for job in jobs}
    number = 0
    while any(left.values()):
        for job in [job for job, tries in left.items() if tries]:
            if time.monotonic() >= until or (one := attempt(job, number, folder, stop)) is None:
                return
            duels.say(f"{job.title}: {one.verdict} after {one.took_s:.0f} s and {one.launches} launches")
            left[job] -= 1
            yield one
        number += 1


def wanted(job: Job, asked: int | None) -> int:
    """How many tries there should be."""
    return asked or MODELS[job.model].tries


def line(job: Job, tries: Sequence[Try], asked: int | None = None) -> Line:
    """How many tries found it, and the time that they took. The bars are the MLP's; other models are shown.

    asked: tries that there should be, None: as many as the model says. Those that the time did not allow found nothing.
    """
    n, hits = len(tries), sum(one.found for one in tries)
    judged, least = job.model == "mlp", math.ceil(job.target.least * wanted(job, asked))
    bar = f"at least {least} of {wanted(job, asked)}" if judged else ""
    holds = hits >= least if judged else None
    return duels.count_line(f"{job.title}{took(tries)}", hits, n, bar, holds)


def took(tries: Sequence[Try]) -> str:
    """Median and largest time of the tries that found it."""
    seconds = [one.took_s for one in tries if one.found]
    return f": {np.median(seconds):.0f} s, at most {max(seconds):.0f} s" if seconds else ""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = duels.parser("sensitivity", __doc__)
    parser.add_argument("--minutes", type=float, help="start no try after so many (default: 180, quick: 5)")
    parser.add_argument("--tries", type=int, help="of each kind (default: 20 of the MLP, 5 of ResNet-18; quick: 1)")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="(default: all, quick: mlp)")
    options = parser.parse_args(arguments)
    options.minutes = options.minutes or (5.0 if options.quick else 180.0)
    options.tries = options.tries or (1 if options.quick else None)
    options.models = options.models or (["mlp"] if options.quick else list(MODELS))
    return options


def main(arguments: list[str] | None = None) -> int:
    """Calibrate, try, and print the table."""
    options = parse(arguments)
    until = time.monotonic() + options.minutes * 60

    def body(folder: Path, stop: StopFlag) -> list[Line]:
        found = [calibrate(model, folder, options.quick, stop) for model in options.models]
        jobs = [job for own, _ in found for job in own]
        tries = list(attempts(jobs, options.tries, until, folder, stop))
        judged = [line(job, [one for one in tries if one.job == job], options.tries) for job in jobs]
        return [*(one for _, lines in found for one in lines), *judged]

    return duels.main("sensitivity", options, options.minutes * 60 + GRACE_S, body)


if __name__ == "__main__":
    sys.exit(main())
