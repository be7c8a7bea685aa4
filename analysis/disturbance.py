"""What the machine did to a study, as warnings: drift, throttling, launches of two kinds, foreign load."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis import trends, words
from analysis.rows import Summary

FOREIGN_SHARE = 0.05
"""Share of a host's cores for other processes from which it is said: more than what a driver and agents need, and
enough to slow a rank by more than a usual margin."""
STEAL_SHARE = 0.02
"""Of a host's cores for other guests, likewise: it cannot be seen by whom, so sooner."""
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


def _load_warnings(summary: Summary, launches: pd.DataFrame) -> Iterator[str]:
    kinds = {
        "foreign_share": (
            FOREIGN_SHARE,
            "other processes used up to",
            "stop them, or measure when the machine is idle",
        ),
        "steal_share": (STEAL_SHARE, "other guests of the machine took up to", "take a machine of your own"),
    }
    for column, (most, told, remedy) in kinds.items():
        loud = launches[launches[column] > most]
        if len(loud):
            worst = loud.loc[loud[column].idxmax()]
            yield (
                f"{told} {worst[column]:.0%} of the cores during the blocks of {len(loud)} of {len(launches)} launches "
                f"(most in launch {worst['launch']} of {summary.at(int(worst['contestant'])).title}); {remedy}"
            ).replace("%", " %", 1)
