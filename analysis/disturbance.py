"""What the machine did to a study, as warnings: drift, throttling, launches of two kinds, foreign load."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis import stats, trends, words
from analysis.launch import MAIN
from analysis.pairing import step_times
from analysis.rows import Summary

FOREIGN_SHARE = 0.05
"""Share of a host's cores for other processes from which it is said: more than what a driver and agents need, and
enough to slow a rank by more than a usual margin."""
STEAL_SHARE = 0.02
"""Of a host's cores for other guests, likewise: it cannot be seen by whom, so sooner."""
HELD_SHARE = 0.05
"""Of the time of blocks in which a GPU's clock was held down: more than a few short dips."""
LEAST_LAUNCHES = 3
"""From which on spikes can be told from an interval that is almost everything."""
CLOCK_DROP = 0.05
"""Share of the clock's rate that is lost over a study; turbo alone moves a few per cent."""


def warnings(summary: Summary, launches: pd.DataFrame) -> Iterator[str]:
    """What the machine did during the main launches: drift, two kinds of launches, foreign load, throttling."""
    usable = launches[launches["usable"]].drop_duplicates(["key", "launch"]) if len(launches) else launches
    if not len(usable):
        return
    yield from _drift_warnings(usable, summary.records.study.margin)
    yield from _mode_warnings(summary, usable)
    yield from _load_warnings(summary, usable)
    yield from _spike_warnings(summary)


def _drift_warnings(launches: pd.DataFrame, margin: float) -> Iterator[str]:
    logs = np.log(launches.pivot(index="launch", columns="key", values="step_time_s"))
    drift = trends.drift((logs - logs.mean()).mean(axis=1))
    if drift is not None and abs(drift) > np.log1p(margin):
        yield (
            f"drift: step times moved by {words.change(math.exp(drift))} from the first launch to the last; those that "
            f"took turns are compared fairly all the same, but step times by themselves are not to be quoted; let the "
            f"machine settle, or look for what grew"
        )
    clock = np.log(launches.pivot(index="launch", columns="key", values="mhz").mean(axis=1))
    slowed = trends.drift(clock.dropna())
    if slowed is not None and slowed < np.log(1 - CLOCK_DROP):
        first, last = np.exp(clock.dropna().iloc[[0, -1]])
        yield (
            f"the clock fell from {first:.0f} to {last:.0f} MHz during the study, as when a processor gets hot; cool "
            f"it, or fix its frequency below turbo"
        )


def _mode_warnings(summary: Summary, launches: pd.DataFrame) -> Iterator[str]:
    margin = summary.records.study.margin
    groups = list(launches.groupby("contestant", sort=True))
    for place, own in groups:
        split = trends.two_groups(np.log(own["step_time_s"].to_numpy()), trends.LEVEL / len(groups))
        if split is None or split.gap <= np.log1p(margin):
            continue
        low, high = (words.significant(math.exp(value) * 1e3) for value in (split.low, split.high))
        yield (
            f"launches of {summary.at(int(str(place))).title} fall in two groups, {split.count_low} at {low} ms and "
            f"{split.count_high} at {high} ms: their mean depends on which came more often; look for what differs "
            f"(cores, memory, routes), or raise study.launches"
        )


LOADS = {
    "foreign_share": (
        FOREIGN_SHARE,
        "other processes used up to {:.0%} of the cores during the blocks",
        "stop them, or measure when the machine is idle",
    ),
    "steal_share": (
        STEAL_SHARE,
        "other guests of the machine took up to {:.0%} of the cores during the blocks",
        "take a machine of your own",
    ),
    "gpu_strangers": (
        0,
        "up to {:.0f} other processes were on a GPU during the blocks",
        "stop them, or take the GPU for yourself",
    ),
    "gpu_held_share": (
        HELD_SHARE,
        "power or heat held a GPU's clock down for up to {:.0%} of the time of the blocks",
        "cool it, raise its power limit, or fix its clock where it can hold it",
    ),
}
"""By column of launches: the most that is not worth a word, what is told, and the remedy."""


def _load_warnings(summary: Summary, launches: pd.DataFrame) -> Iterator[str]:
    for column, (most, told, remedy) in LOADS.items():
        loud = launches[launches[column] > most]
        if len(loud):
            worst = loud.loc[loud[column].idxmax()]
            yield (
                f"{told.format(worst[column]).replace('%', ' %')} of {len(loud)} of {len(launches)} launches (most in "
                f"launch {worst['launch']} of {summary.at(int(worst['contestant'])).title}); {remedy}"
            )


def _spike_warnings(summary: Summary) -> Iterator[str]:
    """Where the launches' whole times say another thing than the location of their rounds, which spikes do not move."""
    blocks, margin = summary.records.blocks, summary.records.study.margin
    times = step_times(blocks[blocks["stage"] == MAIN])
    for pair in summary.comparisons:
        if "joined" in pair.marks:
            continue
        a, b = times[pair.a].align(times[pair.b], join="inner")
        rounds = np.log(a / b)
        whole = np.log(a[rounds.notna()].mean(axis=1) / b[rounds.notna()].mean(axis=1)).dropna()
        if len(whole) < LEAST_LAUNCHES:
            continue
        spikes = stats.ratio_of_pairs(whole - stats.hodges_lehmann(rounds.loc[whole.index].to_numpy()))
        if stats.direction(spikes) and not 1 / (1 + margin) <= spikes.value <= 1 + margin:
            of, ratio = summary.at(pair.a if spikes.value > 1 else pair.b).title, math.exp(whole.mean())
            yield (
                f"blocks of {of} are now and then far slower than its others: by whole launches "
                f"{summary.at(pair.a).title} takes {words.change(ratio)} against {summary.at(pair.b).title}, by the "
                f"verdict's ratio, which such blocks hardly move, {words.change(pair.ratio.value)}; look at p95, p99 "
                "and the single steps for whose they are"
            )
