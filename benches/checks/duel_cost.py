"""`make duel-cost`: what does the same interval cost by a duel, by relaunching, and by running one after the other?

Three equal contestants (DDP over gloo, two ranks, MLP), so that each verdict against equality is false. Ways:
- duel: alive together, a block each in turn; paired by launch.
- relaunch, at several lengths of block: fresh processes for each block, contestants by turns; paired by launch.
- A, then B, then C: all of A's launches, then all of B's, …; Welch's interval over launch means.
- one run of each: one launch of each, one after the other, Welch's interval over its blocks; what one reads most often.
All ways take turns, so that the machine is the same for all.

Time to the interval: from each way's spread, the least number of launches (of blocks in the last way) at which a 95 % t
interval of one ratio reaches the half-width asked for, times what such a launch took, start-up included, for three
contestants. False verdicts: of two orthogonal contrasts in each group of launches; in the last two ways of A against B
and of B against C, which share B, so that their interval is a little too narrow. That time goes with the square of a
spread that is estimated, so the duel's advantage has an interval too: percentiles over drawing each way's launches anew
(Efron 1979).
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from analysis import stats
from benches.checks import duels
from benches.checks.duels import Line
from benches.driver import Driver
from benches.folder import open_study
from benches.schedule import Turn, heats, turns
from launchers.supervise import StopFlag
from launchers.tools import Tools

CONTESTANTS = 3
CONTRASTS = np.array([[1, -1, 0], [3**-0.5, 3**-0.5, -2 * 3**-0.5]])
"""Of log step times. Orthogonal; squares sum up to 2, as those of a ratio of two do."""
BLOCK_STEPS = 50
ROUNDS = 18
"""Of the duel. Steps of the MLP over gloo differ by half (2, 4 or 6 ms): 900 of them and the start of ranks take about
equally long, near which an interval is narrow soonest; `LENGTHS` are on both sides of it."""
LENGTHS = (50, 300, 1200)
"""Block lengths of relaunch, in steps of some 4 ms."""
IN_TURN_STEPS = 300
"""Length of block of A, then B, then C."""
RUN_BLOCKS = 20
"""Of one run of each."""
MOST_N = 100_000
LEAST_TURNS = 8
"""Of every way, before the advantage is judged: percentiles over so few draws make an interval too narrow."""
DRAWS = 1000
GRACE_S = 300.0


@dataclass
class Way:
    """One way to compare, and what it took."""

    name: str
    driver: Driver
    size: int = 1
    """Launches of one contestant before the next one's."""
    took_s: list[float] = field(default_factory=list)
    """One launch of all contestants, from start to end; of each turn of this way their mean."""

    def run(self, number: int) -> None:
        """Turn `number` of this way: `size` launches of each contestant."""
        started, launches = time.monotonic(), range(number * self.size, (number + 1) * self.size)
        for heat in self._heats(launches):
            if not self.driver.stop.is_set():
                self.driver.launch(heat)
        self.took_s.append((time.monotonic() - started) / self.size)

    def _heats(self, launches: range) -> Iterable[list[Turn]]:
        study = self.driver.study
        if self.size == 1:
            return heats(study, turns(study, launches))
        return [[Turn(one, launch)] for one in study.contestants for launch in launches]

    @property
    def times(self) -> NDArray[np.float64]:
        """Step times, shape (contestants, launches, rounds); launches that are not whole are left out."""
        return duels.complete(duels.step_times(self.driver.folder.path))

    def measured(self) -> Measured:
        """What has come of it so far."""
        return Measured(self.name, self.times, np.array(self.took_s), self.size)


@dataclass(frozen=True)
class Measured:
    """What one way gave."""

    name: str
    times: NDArray[np.float64]
    """Step times, shape (contestants, launches, rounds)."""
    took_s: NDArray[np.float64]
    """As in Way."""
    size: int = 1
    """As in Way."""

    @property
    def launch_s(self) -> float:
        """Seconds of one launch of all its contestants."""
        return float(np.mean(self.took_s)) if len(self.took_s) else math.nan

    def drawn(self, random: np.random.Generator) -> Measured:
        """As many turns, drawn from its own with replacement."""
        count = self.times.shape[1] // self.size
        if not count:
            return self
        starts = random.integers(count, size=(count, 1)) * self.size
        times = self.times[:, (starts + np.arange(self.size)).ravel()]
        return replace(self, times=times, took_s=random.choice(self.took_s, len(self.took_s)))


def ways(folder: Path, size: int, stop: StopFlag, stack: ExitStack) -> Iterator[Way]:
    """All ways; `size`: launches of each contestant in A, then B, then C."""
    planned = [("duel", "duel", BLOCK_STEPS, ROUNDS, 1)]
    planned += [(f"relaunch, blocks of {steps}", "relaunch", steps, 1, 1) for steps in LENGTHS]
    planned += [("A, then B, then C", "relaunch", IN_TURN_STEPS, 1, size)]
    planned += [("one run of each", "relaunch", BLOCK_STEPS, RUN_BLOCKS, 1)]
    for number, (name, schedule, steps, rounds, own) in enumerate(planned):
        copies = duels.copies(duels.contestant(block_steps=steps), CONTESTANTS)
        study = duels.make_study(f"way{number}", copies, schedule=schedule, rounds=rounds)
        driver = Driver(open_study(study, folder), Tools(), duels.Told(), stop)
        yield Way(name, stack.enter_context(driver), own)


def measure(folder: Path, size: int, until: float, stop: StopFlag) -> list[Measured]:
    """Let all ways take turns until the time is up, but each at least twice."""
    with ExitStack() as stack:
        found = list(ways(folder, size, stop, stack))
        for number in itertools.count():
            for way in found:
                if stop.is_set() or (number >= 2 and time.monotonic() >= until):
                    return [each.measured() for each in found]
                duels.say(f"turn {number + 1}: {way.name}")
                way.run(number)
    raise AssertionError


@dataclass(frozen=True)
class Cost:
    """What one way comes to."""

    name: str
    n: int
    """Launches of each contestant behind it."""
    needed: int
    """Launches of each contestant (blocks, for one run of each) to the interval; 0: cannot be told."""
    time_s: float
    """To the interval, for three contestants; infinite: cannot be told."""
    false: int
    contrasts: int


def paired(name: str, times: NDArray[np.float64], launch_s: float, size: int, half_width: float) -> Cost:
    """Of duel or relaunch; times: shape (3, launches, rounds), launch_s: of one launch of all three."""
    combined = np.einsum("kc,clr->klr", CONTRASTS, np.log(times))
    values = np.stack([stats.hodges_lehmann(one) for one in combined])
    count = values.shape[1] // size
    groups = values[:, : count * size].reshape(-1, size)
    false = sum(stats.direction(stats.ratio_of_pairs(group)) is not None for group in groups)
    # Contestants are equal, so the spread around zero is the noise.
    spread = float(np.sqrt(np.mean(values**2))) if values.size else math.nan
    n = least(lambda n: t(n - 1) * spread / math.sqrt(n), half_width)
    return Cost(name, times.shape[1], n, n * launch_s if n else math.inf, false, len(groups))


def in_turn(name: str, times: NDArray[np.float64], launch_s: float, size: int, half_width: float) -> Cost:
    """Of A, then B, then C, whose launches `size` by `size` are one comparison; times as in `paired`."""
    cycles = times.shape[1] // size
    if not cycles:
        return Cost(name, times.shape[1], 0, math.inf, 0, 0)
    logs = np.log(times[:, : cycles * size]).mean(axis=2).reshape(len(times), cycles, size)
    # About the truth, that all are equal, as in `paired`: Welch's interval, blind to what drifts between contestants,
    # would be narrow soon and wrong, as its false verdicts show.
    spread = spread_of(logs.transpose(1, 0, 2).reshape(cycles, -1))
    n = least(lambda n: t(2 * n - 2) * spread * math.sqrt(2 / n), half_width)
    found = [differ(a, b) for a, b in neighbours(logs)]
    return Cost(name, times.shape[1], n, n * launch_s if n else math.inf, sum(found), len(found))


def one_run(name: str, times: NDArray[np.float64], launch_s: float, block_s: float, half_width: float) -> Cost:
    """Of one run of each; block_s: of one block, launch_s: of three launches with all their blocks."""
    logs, rounds = np.log(times), times.shape[2]
    # Not -1: without a record there is nothing to divide by.
    spread = spread_of(logs.reshape(logs.shape[0] * logs.shape[1], rounds))
    n = least(lambda n: t(2 * n - 2) * spread * math.sqrt(2 / n), half_width)
    start_up_s = launch_s - CONTESTANTS * rounds * block_s
    found = [differ(a, b) for a, b in neighbours(logs)]
    time_s = start_up_s + CONTESTANTS * n * block_s if n else math.inf
    return Cost(name, times.shape[1], n, time_s, sum(found), len(found))


def neighbours(logs: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """A and B, B and C of each comparison; logs: shape (contestants, comparisons, values)."""
    for a, b in itertools.pairwise(logs):
        yield from zip(a, b, strict=True)


def spread_of(rows: NDArray[np.float64]) -> float:
    """Standard deviation within rows, by their mean square; NaN where they do not tell."""
    if not rows.size or rows.shape[1] < 2:
        return math.nan
    return float(np.sqrt(np.mean(np.var(rows, axis=1, ddof=1))))


def differ(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Whether Welch's test calls two samples different at 95 %."""
    return bool(distributions.ttest_ind(a, b, equal_var=False).pvalue < 1 - stats.LEVEL)


@cache
def t(freedom: int) -> float:
    """Student's quantile of a two-sided 95 % interval."""
    return float(distributions.t.ppf((1 + stats.LEVEL) / 2, freedom))


def least(half: Callable[[int], float], half_width: float) -> int:
    """The least n of at least 2 whose half-width, in logarithms, is small enough; 0 where there is none."""
    if math.isnan(half(2)):
        return 0
    return next((n for n in range(2, MOST_N) if half(n) <= math.log1p(half_width)), 0)


def costs(found: Sequence[Measured], size: int, half_width: float) -> list[Cost]:
    """Of all ways, in their order."""
    *by_pairs, in_turns, run = found
    block_s = float(np.mean(run.times)) * BLOCK_STEPS if run.times.size else math.nan
    return [
        *(paired(way.name, way.times, way.launch_s, size, half_width) for way in by_pairs),
        in_turn(in_turns.name, in_turns.times, in_turns.launch_s, size, half_width),
        one_run(run.name, run.times, run.launch_s, block_s, half_width),
    ]


def advantage(found: Sequence[Cost]) -> float:
    """How many times quicker the duel is than the best way that does not mistake noise for a difference.

    One run of each is no rival: its interval is of another thing, as its false verdicts show. 0 where either time
    cannot be told, for that is no victory.
    """
    duel, *others, _ = found
    best_s = min(one.time_s for one in others)
    return best_s / duel.time_s if math.isfinite(best_s) else 0.0


def advantages(found: Sequence[Measured], size: int, half_width: float, draws: int = DRAWS) -> NDArray[np.float64]:
    """The advantage with each way's turns drawn anew, so often."""
    random = np.random.default_rng(0)
    return np.array([advantage(costs([one.drawn(random) for one in found], size, half_width)) for _ in range(draws)])


def lines(found: Sequence[Cost], drawn: NDArray[np.float64], half_width: float) -> list[Line]:
    """The table.

    drawn: the duel's advantages when turns are drawn anew. Their whole interval must lie above 1, with enough launches
    of each way behind it.
    """
    low, high = np.percentile(drawn, [2.5, 97.5])
    what, told = f"duel quicker than the best other, to ±{half_width:.1%}", f"{advantage(found):.2f} times"
    n, bar = min(one.n for one in found), f"over 1, {LEAST_TURNS} launches"
    last = Line(what, n, told, f"{low:.2f} … {high:.2f}", bar, bool(low > 1 and n >= LEAST_TURNS))
    return [*map(_line, found), last]


def _line(one: Cost) -> Line:
    unit = "blocks" if one.name == "one run of each" else "launches"
    told = f"{one.time_s:.0f} s ({one.needed} {unit})" if one.needed else "not to be had"
    false = f"false {one.false} of {one.contrasts}"
    return Line(one.name, one.n, told, " ".join([false, duels.share(one.false, one.contrasts)]).strip())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = duels.parser("duel_cost", __doc__)
    parser.add_argument("--minutes", type=float, help="start no launch after so many (default: 60, quick: 2)")
    parser.add_argument("--half-width", type=float, default=0.02, help="the interval asked for (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=4, help="of one verdict, at least 2 (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.launches < 2:
        parser.error(f"--launches={options.launches}: one launch has no interval; take 2 or more")
    options.minutes = options.minutes or (2.0 if options.quick else 60.0)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure all ways and print their costs."""
    options = parse(arguments)
    until = time.monotonic() + options.minutes * 60

    def body(folder: Path, stop: StopFlag) -> list[Line]:
        size = 2 if options.quick else options.launches
        found = measure(folder, size, until, stop)
        drawn = advantages(found, size, options.half_width)
        return lines(costs(found, size, options.half_width), drawn, options.half_width)

    return duels.main("duel-cost", options, options.minutes * 60 + GRACE_S, body)


if __name__ == "__main__":
    sys.exit(main())
