"""How the numbers of a study came about, in words, from the frozen study and its records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis import stats, words
from analysis.rows import Summary
from benches.spec import Study

SCHEDULES = {
    "duel": "The contestants of a heat were alive together and took turns, a block each in balanced order; those whose "
    "turn it was not were stopped.",
    "relaunch": "The contestants of a point were launched in turn, in balanced order, each to run all its blocks.",
}


def paragraphs(summary: Summary) -> list[str]:
    """One text each: what ran, how it was reduced, what a verdict means, what the A/A control and the stop rule did."""
    return [*_ran(summary), *_reduced(summary), *_judged(summary)]


def _ran(summary: Summary) -> Iterator[str]:
    study = summary.records.study
    cases = [contestant.case for contestant in study.contestants]
    blocks = sorted({case.block_steps for case in cases})
    warmups = sorted({case.warmup_steps for case in cases})
    launches = summary.records.launches
    briefly = launches["parity_passed"].notna() & launches["parity_error"].isna()
    told = " Launches after one that passed it checked initial weights, learning rate and samples only."
    brief = told if briefly.any() else ""
    clocks = sorted({header.clock for header in summary.records.headers.values() if header.status == "ok"})
    yield (
        f"Each contestant was to be launched {study.launches} times in fresh processes. {SCHEDULES[study.schedule]} A "
        f"launch first passes the parity gate: the gradients that the engine delivers, a rank's own gradients, buffers "
        f"and the weights after one step are compared with what a single process computes.{brief} It warms up for at "
        f"least {_either(warmups)} untimed steps and is timed over {study.rounds} blocks of {_either(blocks)} steps"
        f"{f', by {_either(clocks)}' if clocks else ''}. The device is synchronised and the ranks meet at a block's "
        f"edges only."
    )


def _reduced(summary: Summary) -> Iterator[str]:
    looks = summary.records.study.looks
    count = len(summary.comparisons) + len(summary.chosen)
    over = f", also over the looks after {_either(list(looks))} launches" if len(looks) > 1 else ""
    joined = (
        " Contestants of different heats are compared through the reference, a copy of which ran in each heat (joined)."
        if any("joined" in found.marks for found in summary.comparisons)
        else ""
    )
    yield (
        "A block's time is that of its slowest rank; throughput is the block's global samples ÷ that time. The launch "
        "is the replicate: a row gives the median of launches and their spread. A launch's ratio is the Hodges-Lehmann "
        "location of the log-ratios of its rounds, which single disturbed blocks hardly move. A ratio is the geometric "
        "mean over pairs of launches that bear the same number, with Student's t interval on its logarithm. All "
        f"intervals of comparisons ({count}) hold together with {stats.LEVEL * 100:g} % (Bonferroni{over}).{joined}"
    )


def _judged(summary: Summary) -> Iterator[str]:
    study = summary.records.study
    yield (
        f"Verdict with the margin {study.margin * 100:g} %: equivalent where the interval lies within a factor of "
        f"{1 + study.margin:g} either way; else slower or faster where it excludes 1; else inconclusive. Below "
        f"{stats.PROVISIONAL_BELOW} launches a verdict is provisional. Contestants that fail the parity gate are "
        f"not ranked. The study was frozen before the first block (hash {study.hash})."
    )
    if summary.controls:
        yield (
            f"The A/A control is a second copy of the reference, judged at {stats.CONTROL_LEVEL * 100:g} % by itself. "
            "Where its interval excludes 1 in two sets of launches, verdicts that its own difference could undo are "
            "inconclusive, and the others stand, marked A/A."
        )
    if summary.chosen:
        yield (
            "The best of each engine was chosen by the main launches and is measured by fresh ones, for those that "
            "chose it flatter it; until these are there it is not confirmed."
        )
    yield from _stopped(study)


def _stopped(study: Study) -> Iterator[str]:
    if study.stop_when is not None:
        until = "no verdict is inconclusive"
        if not isinstance(study.stop_when, str):
            until = f"each interval is within {words.half_width(study.stop_when)} of its ratio"
        yield f"Launches were added until {until}, at most {study.looks[-1]}."


def _either(values: list[Any]) -> str:
    return " or ".join(map(str, values))
