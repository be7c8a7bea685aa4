"""`make sensitivity`: are true slow-downs found, and how fast? DDP over gloo on two ranks, margin 0.5 %.

What is planted is compute: matrix products before each forward pass (`slowed`). How many make 5 and 2 % follows from a
probe of each model, a duel of many products and of half as many against none: a slow-down far beyond the noise is known
closely, and products add up, which the half shows. The tries then measure the planted ones themselves, by the launches
that come before any look, which no stop has chosen. A slow-down larger than it should be fails, since it would be found
too easily.

A try is a study as anybody would run it (A/A control, looks that stop it when it knows), start-up of its ranks
included, with 3 minutes for 5 % and 6 for 2 %. It has found the slow-down where its verdict is `slower` and came within
that time. Tries of the MLP, which has bars, take turns until their counts are settled, then those of ResNet-18; what
time is left goes to the rest.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

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
LAUNCHES = 6
"""Before the first look; as a study has by default."""
ROUNDS = 18
"""Blocks of each contestant in a launch. Steps of the MLP over gloo differ by half (2 or 4 ms): 900 of them and the
start of ranks take about equally long, near which a slow-down is known soonest."""
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

    @property
    def what(self) -> str:
        """What is done to the model."""
        return f"{self.model}: planted {self.target.percent:g} % ({self.products} products)"

    @property
    def judged(self) -> bool:
        """Whether there is a bar for how many tries find it."""
        return self.model == "mlp"


@dataclass(frozen=True)
class Try:
    """What came of one try."""

    job: Job
    verdict: str
    took_s: float
    launches: int
    first: NDArray[np.float64]
    """Log-ratios of the launches before the first look."""

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


def calibrate(
    model: str, targets: Sequence[Target], folder: Path, quick: bool, stop: StopFlag
) -> tuple[list[Job], list[Line]]:
    """The jobs of a model, and what the probe says of the slow-downs that are planted in them."""
    probe = MODELS[model].probe
    found = ratios(f"probe-{model}", model, [probe // 2, probe], 2 if quick else 6, folder, stop)
    if not found or min(one.value for one in found) <= 1:
        told = ", ".join(f"{one.value:.4f}" for one in found) or "no launch"
        return [], [Line(f"{model}: {probe // 2}, {probe} products ÷ none", len(found), told, "", "above 1", False)]
    half, whole = found
    jobs = [Job(model, target, products_for(target.percent, probe, whole.value)) for target in targets]
    return jobs, [additive(model, half, whole), *(probed(job, of_probe(whole, job.products / probe)) for job in jobs)]


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


def most_planted(job: Job) -> float:
    """The largest ratio that is no easier to find than it should be."""
    return 1 + MOST_PLANTED * job.target.percent / 100


def probed(job: Job, ratio: Estimate) -> Line:
    """What the slow-down is by the probe, which knows it closely: its whole interval must be small enough."""
    what, most = f"{job.what}, by the probe", most_planted(job)
    return duels.ratio_line(what, ratio, f"all within {most:.4f}", ratio.high <= most)


def planted(job: Job, tries: Sequence[Try]) -> Line:
    """What the slow-down was in the tries. It fails where that is shown to be too much."""
    what, most = f"{job.what}, in the tries", most_planted(job)
    logs = np.concatenate([one.first for one in tries]) if tries else np.empty(0)
    if len(logs) < 2:
        return Line(what, len(logs), "too few launches", "", f"not above {most:.4f}", False)
    ratio = stats.ratio_of_pairs(logs)
    return duels.ratio_line(what, ratio, f"not above {most:.4f}", ratio.low <= most)


def attempt(job: Job, number: int, folder: Path, stop: StopFlag) -> Try | None:
    """One study; None where it was interrupted."""
    started = time.monotonic()
    name = f"{job.model}-{job.target.percent:g}-{number}"
    heat = arrange(contestants(job.model, [0, job.products]), {}, max_alive=8, control=True)
    settings = {"launches": LAUNCHES, "rounds": ROUNDS, "margin": MARGIN, "stop_when": "verdict"}
    study = duels.make_study(name, heat, **settings, budget_s=job.target.limit_s - HEAT_S)
    path = duels.run_study(study, folder, stop)
    first = before_looks(duels.step_times(path))
    summary = summaries.reduce(table.read(path))
    if stop.is_set():
        return None
    took_s = time.monotonic() - started
    if not summary.comparisons:
        return Try(job, "no verdict", took_s, 0, first)
    (comparison,) = summary.comparisons
    return Try(job, comparison.verdict, took_s, comparison.ratio.n, first)


def before_looks(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-ratios of the slow contestant to the plain one; times: of plain, slow and others, (n, launches, blocks)."""
    plain, slow = duels.complete(times[:2, :LAUNCHES])
    return stats.log_ratios(slow, plain)


def attempts(jobs: Sequence[Job], asked: int | None, until: float, folder: Path, stop: StopFlag) -> list[Try]:
    """Tries of all jobs, each `asked` times or as often as its model says, until the time is up."""
    done: list[Try] = []
    while time.monotonic() < until and (job := turn_of(jobs, done, asked)):
        one = attempt(job, len(of_job(job, done)), folder, stop)
        if one is None:
            break
        duels.say(f"{job.title}: {one.verdict} after {one.took_s:.0f} s and {one.launches} launches")
        done.append(one)
    return done


def of_job(job: Job, tries: Sequence[Try]) -> list[Try]:
    """Those of one kind."""
    return [one for one in tries if one.job == job]


def turn_of(jobs: Sequence[Job], done: Sequence[Try], asked: int | None) -> Job | None:
    """Whose turn it is; None: every job has had its tries."""

    def order(job: Job) -> tuple[int, int]:
        own = of_job(job, done)
        return (1 if not job.judged else 2 if settled(job, own, asked) else 0), len(own)

    return min((job for job in jobs if len(of_job(job, done)) < wanted(job, asked)), key=order, default=None)


def least_hits(job: Job, asked: int | None) -> int:
    """How many tries must find it."""
    return math.ceil(job.target.least * wanted(job, asked))


def settled(job: Job, tries: Sequence[Try], asked: int | None) -> bool:
    """Whether no further try can change what is said of these."""
    hits, left = sum(one.found for one in tries), wanted(job, asked) - len(tries)
    return not hits < least_hits(job, asked) <= hits + left


def wanted(job: Job, asked: int | None) -> int:
    """How many tries there should be."""
    return asked or MODELS[job.model].tries


def line(job: Job, tries: Sequence[Try], asked: int | None = None) -> Line:
    """How many tries found it, and the time that they took. Without a bar, only the tries themselves must be there.

    asked: tries that there should be, None: as many as the model says. Those that the time did not allow found nothing.
    """
    n, hits = len(tries), sum(one.found for one in tries)
    bar = f"at least {least_hits(job, asked)} of {wanted(job, asked)}" if job.judged else f"{wanted(job, asked)} tries"
    holds = hits >= least_hits(job, asked) if job.judged else n >= wanted(job, asked)
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
    percents = [target.percent for target in TARGETS]
    parser.add_argument("--percents", nargs="+", type=float, choices=percents, default=percents, help="(default: all)")
    options = parser.parse_args(arguments)
    options.minutes = options.minutes or (5.0 if options.quick else 180.0)
    options.tries = options.tries or (1 if options.quick else None)
    options.targets = [target for target in TARGETS if target.percent in options.percents]
    options.models = options.models or (["mlp"] if options.quick else list(MODELS))
    return options


def main(arguments: list[str] | None = None) -> int:
    """Calibrate, try, and print the table."""
    options = parse(arguments)
    until = time.monotonic() + options.minutes * 60

    def body(folder: Path, stop: StopFlag) -> list[Line]:
        found = [calibrate(model, options.targets, folder, options.quick, stop) for model in options.models]
        jobs = [job for own, _ in found for job in own]
        tries = attempts(jobs, options.tries, until, folder, stop)
        judged = [line(job, of_job(job, tries), options.tries) for job in jobs]
        shown = [planted(job, of_job(job, tries)) for job in jobs]
        return [*(one for _, lines in found for one in lines), *shown, *judged]

    return duels.main("sensitivity", options, options.minutes * 60 + GRACE_S, body)


if __name__ == "__main__":
    sys.exit(main())
