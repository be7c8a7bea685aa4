"""Which contestants meet, and the ratio of their step times with its verdict. n counts pairs of launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import stats
from analysis.components import Components, components
from analysis.estimate import Estimate
from analysis.marks import APART
from analysis.pairing import Paired
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
    spread: Components
    """Of the log-ratios, within launches and between them."""
    marks: tuple[str, ...] = ()
    """joined: through the reference, since the two were never alive together; A/A: the control differs too."""


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


def pairs(field: Sequence[Entrant], reference: Entrant) -> list[tuple[int, int]]:
    """Each entrant against the reference."""
    return [(entrant.index, reference.index) for entrant in field if entrant.index != reference.index]


def judge(pair: tuple[int, int], paired: Paired, level: float, margin: float) -> Comparison:
    """The verdict on a pair that has at least one common launch."""
    ratio = stats.ratio_of_pairs(paired.logs, level)
    return Comparison(
        *pair,
        ratio=ratio,
        verdict=stats.verdict(ratio, margin),
        direction=stats.direction(ratio),
        provisional=ratio.n < stats.PROVISIONAL_BELOW,
        spread=components(paired.rounds.to_numpy()),
        marks=("joined",) if paired.joined else (),
    )
