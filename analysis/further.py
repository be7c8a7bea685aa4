"""Which launches a study still needs once those that are due have records. Decided by the records alone.

So a study that is resumed decides as it would have without the interruption: main launches are judged by main launches
only, and what is asked for is a range of numbers, in which the driver leaves out what has a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from analysis import headline, stats, summary, table
from analysis.compare import Comparison
from analysis.launch import MAIN, stage
from analysis.rows import Row, Summary
from analysis.table import Records
from benches.spec import AGAIN_FROM, CONFIRM_FROM

GIVE_UP_AFTER = 2
"""Launches of one contestant that may fail in succession; it then gets no further ones."""


@dataclass(frozen=True)
class Further:
    """Launches that are due now."""

    contestants: tuple[int, ...]
    """Places in `study.contestants`."""
    launches: range
    why: str
    """One line for whoever watches."""


def further(records: Records) -> Further | None:
    """The next launches, None when the study is over.

    First main launches up to the next look, while `study.stop_when` is not satisfied for each of the comparisons (those
    against the reference and of the defaults; the best are none while they are being chosen); then a second set for an
    A/A control whose interval excludes 1; then fresh launches for the best of each engine. At least one of what is
    returned has no record. A launch with a record is done however it ended, and a contestant that failed GIVE_UP_AFTER
    times in succession is asked for nothing, so asking again and again comes to an end.
    """
    return next(_due(summary.reduce(records), table.main_launches(records) or records.study.launches), None)


def _due(found: Summary, done: int) -> Iterator[Further]:
    if due := _next_look(found, done):
        yield due
    yield from _again(found, done)
    yield from _confirm(found, done)


def _next_look(found: Summary, done: int) -> Further | None:
    study = found.records.study
    if study.stop_when is None:
        return None
    able = tuple(row.index for row in [*found.rows, *found.copies] if row.ranked and not _given_up(found, row, MAIN))
    before = max((look for look in study.looks if look < done), default=0)
    reached = next((look for look in study.looks if look >= done), study.looks[-1])
    if _missing(found, able, range(before, reached)):
        return Further(able, range(before, reached), f"on to {reached} launches, after which the study is judged")
    later = [look for look in study.looks if look > reached]
    undecided = [c for c in found.comparisons if not stats.settled([c.ratio], study.stop_when, study.margin)]
    open_ = [c for c in undecided if _may_change(found, c, able)]
    if not (later and open_):
        return None
    still = "inconclusive" if study.stop_when == "verdict" else f"wider than ±{float(study.stop_when) * 100:g} %"
    why = f"after {reached} launches {len(open_)} of {len(found.comparisons)} comparisons are {still}: on to {later[0]}"
    return Further(able, range(reached, later[0]), why)


def _may_change(found: Summary, comparison: Comparison, able: tuple[int, ...]) -> bool:
    """Whether further launches of `able` say more of both sides; a copy stands for its original in another heat."""
    cases = {found.at(place).case_id for place in able}
    return all(found.at(place).case_id in cases for place in (comparison.a, comparison.b))


def _again(found: Summary, done: int) -> Iterator[Further]:
    for control in found.controls:
        pair = (control.comparison.b, control.comparison.a)
        name, level = found.at(pair[0]).title, stats.CONTROL_LEVEL * 100
        why = f"the A/A control of {name} differs at {level:g} %: {done} launches more of both"
        if control.comparison.direction is not None:
            yield from _both(found, pair, range(AGAIN_FROM, AGAIN_FROM + done), why)


def _confirm(found: Summary, done: int) -> Iterator[Further]:
    for best in found.chosen if found.records.study.confirm else ():
        names = " and ".join(found.at(place).title for place in best.pair)
        why = f"{headline.subject([found.at(best.pair[0])])}: the best meet in {done} fresh launches: {names}"
        yield from _both(found, best.pair, range(CONFIRM_FROM, CONFIRM_FROM + done), why)


def _both(found: Summary, pair: tuple[int, int], launches: range, why: str) -> Iterator[Further]:
    """Launches of two contestants, of use only if both go on."""
    able = not any(_given_up(found, found.at(place), stage(launches.start)) for place in pair)
    if able and _missing(found, pair, launches):
        yield Further(pair, launches, why)


def _missing(found: Summary, places: tuple[int, ...], launches: range) -> bool:
    """Whether one of these launches has no record."""
    return any(not set(launches) <= set(_records(found, place)["launch"]) for place in places)


def _given_up(found: Summary, row: Row, of: str) -> bool:
    """Whether its last records of this stage are all of failures."""
    own = _records(found, row.index)
    last = own[own["stage"] == of].sort_values("launch")["status"].tail(GIVE_UP_AFTER)
    return len(last) == GIVE_UP_AFTER and not last.eq("ok").any()


def _records(found: Summary, place: int) -> pd.DataFrame:
    launches = found.records.launches
    own: pd.DataFrame = launches[launches["contestant"].eq(place) & launches["status"].ne("missing")]
    return own
