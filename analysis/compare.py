"""Which contestants meet, and the ratio of their step times with its verdict. n counts pairs of launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import stats
from analysis.estimate import Estimate
from analysis.marks import APART
from benches.spec import Contestant, plain


@dataclass(frozen=True)
class Entrant:
    """A contestant that may be ranked."""

    index: int
    """Its place in `study.contestants`."""
    contestant: Contestant
    marks: tuple[str, ...]

    @property
    def field(self) -> tuple[str, int, frozenset[str]]:
        """Those with one field are compared: same point, world size and kind of machine."""
        point = repr(sorted(self.contestant.point.items()))
        return point, self.contestant.case.cluster.world_size, APART & frozenset(self.marks)


@dataclass(frozen=True)
class Comparison:
    """Step time of `a` ÷ step time of `b`; both are places in `study.contestants`."""

    a: int
    b: int
    ratio: Estimate
    verdict: stats.Word
    direction: stats.Direction | None
    """Of a against b where the interval excludes 1, also within the margin."""
    provisional: bool


def fields(entrants: Sequence[Entrant]) -> list[list[Entrant]]:
    """Entrants that are compared with each other, in the order of the study. `local` is a baseline and meets nobody."""
    found: dict[object, list[Entrant]] = {}
    for entrant in entrants:
        if entrant.contestant.case.engine != "local":
            found.setdefault(entrant.field, []).append(entrant)
    return list(found.values())


def reference_of(field: Sequence[Entrant], wanted: Mapping[str, Any]) -> Entrant:
    """The first that matches the study's reference, else the first under DDP, else the first."""
    matching = [entrant for entrant in field if wanted and matches(entrant.contestant, wanted)]
    return (matching or [entrant for entrant in field if entrant.contestant.case.engine == "ddp"] or list(field))[0]


def matches(contestant: Contestant, wanted: Mapping[str, Any]) -> bool:
    """Whether the case holds the wanted values; keys are nested or dotted."""
    case = plain(contestant.case)
    return all(_at(case, key) == value for key, value in _flat(wanted))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return None
        values = values[part]
    return values


def pairs(field: Sequence[Entrant], wanted: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Each entrant against the reference; and the first under Horovod against the first under DDP."""
    reference = reference_of(field, wanted).index
    found = [(entrant.index, reference) for entrant in field if entrant.index != reference]
    firsts = [next((e.index for e in field if e.contestant.case.engine == name), None) for name in ("horovod", "ddp")]
    horovod, ddp = firsts
    if horovod is not None and ddp is not None and reference not in firsts:
        found.append((horovod, ddp))
    return found


def compare(blocks: pd.DataFrame, meetings: Sequence[tuple[int, int]], margin: float) -> list[Comparison]:
    """Verdicts that hold together with stats.LEVEL; a pair without a common launch is left out.

    blocks: columns contestant, launch, block, step_time_s (table.Records.blocks).
    """
    times = step_times(blocks)
    logs = {pair: paired(times, *pair) for pair in meetings}
    sound = {pair: values for pair, values in logs.items() if len(values)}
    level = stats.simultaneous(stats.LEVEL, len(sound))
    return [_judge(pair, stats.ratio_of_pairs(values, level), margin) for pair, values in sound.items()]


def _judge(pair: tuple[int, int], ratio: Estimate, margin: float) -> Comparison:
    provisional = ratio.n < stats.PROVISIONAL_BELOW
    return Comparison(*pair, ratio, stats.verdict(ratio, margin), stats.direction(ratio), provisional)


def step_times(blocks: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Step times of each contestant in seconds: rows launches, columns blocks."""
    return {
        int(str(index)): group.pivot(index="launch", columns="block", values="step_time_s")
        for index, group in blocks.groupby("contestant")
    }


def paired(times: Mapping[int, pd.DataFrame], a: int, b: int) -> pd.Series:
    """Mean log-ratio of a to b in each launch that both have, by launch."""
    if a not in times or b not in times:
        return pd.Series(dtype=float)
    left, right = times[a].align(times[b], join="inner")
    logs = stats.log_ratios(left.to_numpy(), right.to_numpy())
    return pd.Series(logs, index=left.index).dropna()
