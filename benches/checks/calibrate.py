"""`make calibrate`: are equal contestants called equal as often as we say? At most 30 minutes.

Duels of four copies of one contestant, DDP over gloo on two ranks of the MLP. Three orthogonal contrasts of each duel,
a ÷ b, c ÷ d and ab ÷ cd, each with the variance of a plain ratio, are judged as a study judges: a location of each
launch, then a t interval over launches. Nothing differs, so one in twenty may be called different at 95 %.

Short heats run as one study, one after another, and each `--launches` of them are one duel: copies have no memory of
the heat before. They spend little on steps, for how often equals are called different does not depend on that. Two
launches see no small bias, so each contrast is judged over all short heats together too. What time they leave goes to
heats as a study has them by default, six of which are one duel: how narrow are its intervals?

Then studies are simulated from the blocks of the short heats (analysis.simulate), that look early and stop when they
know.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from analysis import simulate, stats
from analysis.estimate import Estimate
from benches.checks import duels
from benches.checks.duels import Line
from benches.spec import Contestant
from launchers.supervise import StopFlag

DUELS = 40
CONTRASTS = np.array([[1, -1, 0, 0], [0, 0, 1, -1], [0.5**0.5, 0.5**0.5, -(0.5**0.5), -(0.5**0.5)]])
"""Of log step times. Orthogonal; squares sum up to 2, as those of a ratio of two do."""
STUDY_LAUNCHES = 6
MOST_HALF_WIDTH = 0.025
"""At six launches: a method that never decides is no good."""
MOST_FALSE, LEAST_COVERAGE = 0.06, 0.935
SIMULATED, SIMULATED_QUICK = 2000, 100
MARGINS = (0.02, 0.005)
"""Of the simulated studies: the default, at which many stop at once as equivalent, and one at which they look on."""
ENOUGH_LAUNCHES = 20
"""For the bootstrap; of fewer recorded launches only their spread is taken."""
HEAT_S = 30.0
"""The last heat starts so long before the time is up."""
LONG_HEAT_S = 40.0
"""About the time of a heat with the rounds of a default study; those of one duel are kept for it."""
MOST_LONG = 3 * STUDY_LAUNCHES
"""Such heats."""
SHORT, LONG = "copies", "default"
"""Folders of the two studies."""


def values(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each contrast of each launch; times: seconds, shape (4, launches, rounds) to shape (3, launches)."""
    combined = np.einsum("kc,clr->klr", CONTRASTS, np.log(times))
    return np.stack([stats.hodges_lehmann(one) for one in combined])


def intervals(found: NDArray[np.float64], size: int) -> list[Estimate]:
    """Of every contrast in every duel of `size` launches that follow each other; those left over make no duel."""
    count = found.shape[1] // size
    groups = found[:, : count * size].reshape(-1, size)
    return [stats.ratio_of_pairs(group) for group in groups]


def bias_lines(found: NDArray[np.float64]) -> list[Line]:
    """Each contrast over all launches, in which a difference that lasts would show; found: shape (3, launches)."""
    level = stats.simultaneous(stats.LEVEL, len(found))
    names = ("a ÷ b", "c ÷ d", "ab ÷ cd")
    if found.shape[1] < 2:
        return [
            Line(f"{name} of all short heats", found.shape[1], "too few launches", "", "1", False) for name in names
        ]
    ratios = [stats.ratio_of_pairs(one, level) for one in found]
    return [
        duels.ratio_line(f"{name} of all short heats", one, f"1 ({level:.1%})", stats.direction(one) is None)
        for name, one in zip(names, ratios, strict=True)
    ]


def most_called(contrasts: int) -> int:
    """How many of equal ones may be called different: a right method stays below with 98 %. 11 of 120."""
    return int(binom.ppf(0.98, contrasts, 1 - stats.LEVEL))


def called_line(ratios: Sequence[Estimate], launches: int, asked: int) -> Line:
    """How many contrasts were called different; with fewer of them than `asked` it fails, whatever they say."""
    n, hits = len(ratios), sum(stats.direction(one) is not None for one in ratios)
    what, bar = f"contrasts of {launches} launches called different", f"at most {most_called(asked)} of {asked}"
    return duels.count_line(what, hits, n, bar, n >= asked and hits <= most_called(n))


def width_line(ratios: Sequence[Estimate]) -> Line:
    """Median half-width, with the 10th and 90th percentile as its interval."""
    what, bar = f"median half-width at {STUDY_LAUNCHES} launches (10–90 %)", f"at most {MOST_HALF_WIDTH:.1%}"
    if not ratios:
        return Line(what, 0, "too few launches", "", bar, False)
    low, median, high = np.percentile([stats.half_width(one) for one in ratios], [10, 50, 90])
    spread = f"{low:.2%} … {high:.2%}"
    return Line(what, len(ratios), f"{median:.2%}", spread, bar, bool(median <= MOST_HALF_WIDTH))


def simulated(times: NDArray[np.float64], studies: int, margin: float) -> list[Line]:
    """Studies drawn from the recorded launches, that look at six launches and later, and stop when all is settled."""
    if times.shape[1] < 2:
        return [Line(f"simulated studies, margin {margin:.1%}", 0, "too few launches", "", "", False)]
    enough = times.shape[1] >= ENOUGH_LAUNCHES
    draw = (simulate.bootstrap if enough else simulate.parametric)(times)
    looks = duels.make_study("s", [duels.contestant()], launches=STUDY_LAUNCHES, stop_when="verdict").looks
    found = simulate.calibrate(draw, contestants=len(times), looks=looks, margin=margin, studies=studies)
    drawn = "bootstrap" if enough else "parametric"
    how = f"simulated, margin {margin:.1%}, looks at {', '.join(map(str, looks))} ({drawn})"
    false, covered = round(found.false_verdicts * studies), round(found.coverage * studies)
    good = found.false_verdicts <= MOST_FALSE, found.coverage >= LEAST_COVERAGE
    return [
        duels.count_line(f"{how}: false verdicts", false, studies, f"at most {MOST_FALSE:.0%}", good[0]),
        duels.count_line(f"{how}: coverage", covered, studies, f"at least {LEAST_COVERAGE:.1%}", good[1]),
        Line(f"simulated, margin {margin:.1%}: median half-width at the end", studies, f"{found.half_width:.2%}"),
        Line(f"simulated, margin {margin:.1%}: launches, mean", studies, f"{found.launches:.1f}"),
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = duels.parser("calibrate", __doc__)
    parser.add_argument("--minutes", type=float, help="for everything (default: 30, quick: 2)")
    parser.add_argument("--launches", type=int, default=2, help="of one short duel (default: %(default)s)")
    parser.add_argument("--duels", type=int, default=DUELS, help="how many (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="of one short launch (default: %(default)s)")
    parser.add_argument("--records", type=Path, help="judge the records of an earlier run; nothing is started")
    options = parser.parse_args(arguments)
    if options.launches < 2:
        parser.error(f"--launches={options.launches}: one launch has no interval; take 2 or more")
    options.minutes = options.minutes or (2.0 if options.quick else 30.0)
    return options


def measure(options: argparse.Namespace, folder: Path, stop: StopFlag) -> None:
    """Run heats until they are enough or the time is up."""
    until = time.monotonic() + options.minutes * 60 - HEAT_S
    kept_s = 0.0 if options.quick else STUDY_LAUNCHES * LONG_HEAT_S
    short, long = ({"launches": options.duels * options.launches, "rounds": options.rounds}, {"launches": MOST_LONG})
    run(SHORT, duels.contestant(), until - kept_s, folder, stop, **short)
    if not stop.is_set():
        run(LONG, duels.contestant(block_steps=None), until, folder, stop, **long)


def run(name: str, one: Contestant, until: float, folder: Path, stop: StopFlag, **settings: int) -> None:
    """Heats of one study of equal copies: all its launches, or those that start until then."""
    copies, budget_s = duels.copies(one, len(CONTRASTS[0])), max(until - time.monotonic(), HEAT_S)
    duels.run_study(duels.make_study(name, copies, budget_s=budget_s, **settings), folder, stop)


def read(folder: Path, name: str) -> NDArray[np.float64]:
    """Step times of whole heats; none where the study was not begun."""
    path = folder / name
    return duels.complete(duels.step_times(path)) if path.exists() else np.empty((len(CONTRASTS[0]), 0, 1))


def main(arguments: list[str] | None = None) -> int:
    """Measure, simulate, and print the table."""
    options = parse(arguments)

    def body(folder: Path, stop: StopFlag) -> list[Line]:
        if not options.records:
            measure(options, folder, stop)
        short, long = (read(options.records or folder, name) for name in (SHORT, LONG))
        contrasts = values(short)
        equals = intervals(contrasts, options.launches)
        judged = called_line(equals, options.launches, options.duels * len(CONTRASTS))
        studies = SIMULATED_QUICK if options.quick else SIMULATED
        drawn = [line for margin in MARGINS for line in simulated(short, studies, margin)]
        return [judged, *bias_lines(contrasts), width_line(intervals(values(long), STUDY_LAUNCHES)), *drawn]

    return duels.main("calibrate", options, options.minutes * 60 + 300, body)


if __name__ == "__main__":
    sys.exit(main())
