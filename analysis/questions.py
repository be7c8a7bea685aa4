"""The two questions of a comparison of engines: default against default, and best against best.

Default: every setting of the engine is the library's own. Best: the fastest contestant of each engine. Who was chosen
from several for being fast was in part lucky, so the best are measured again in fresh launches (stage confirm), and the
ratio of those that chose them is marked as not confirmed until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.compare import Comparison, Entrant
from analysis.pairing import Pairing
from benches.spec import DdpSettings, HorovodSettings

ENGINES = ("ddp", "horovod")
DEFAULTS = {"ddp": DdpSettings(), "horovod": HorovodSettings()}

Kind = Literal["default", "best"]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Question:
    """One question and its answer."""

    question: Kind
    comparison: Comparison
    confirmed: bool
    """The launches that are compared chose nobody."""


@dataclass(frozen=True)
class Best:
    """The fastest contestant of each engine in one field."""

    pair: Pair
    chosen: bool
    """An engine had several to choose from."""


def default_pair(field: Sequence[Entrant], reference: Entrant) -> Pair | None:
    """Over the reference's transport if both engines have that, else the first default of each engine."""
    found = {name: [e for e in _of(field, name) if _is_default(e)] for name in ENGINES}
    if not all(found.values()):
        return None
    transport = reference.contestant.case.transport
    same = {name: [e for e in own if e.contestant.case.transport == transport] for name, own in found.items()}
    chosen = same if all(same.values()) else found
    firsts = {name: next((e for e in own if e is reference), own[0]) for name, own in chosen.items()}
    return _ordered(firsts, reference)


def best_pair(field: Sequence[Entrant], reference: Entrant, pairing: Pairing) -> Best | None:
    """By the mean log-ratio to the reference; lossy contestants only where an engine has no other."""
    found = {name: _of(field, name) for name in ENGINES}
    exact = {name: [e for e in own if e.contestant.case.lossy is None] for name, own in found.items()}
    found = exact if all(exact.values()) else found
    speed = _speed(reference, pairing)
    found = {name: [e for e in own if speed(e) < math.inf] for name, own in found.items()}
    if not all(found.values()):
        return None
    firsts = {name: min(own, key=speed) for name, own in found.items()}
    return Best(_ordered(firsts, reference), chosen=any(len(own) > 1 for own in found.values()))


def _speed(reference: Entrant, pairing: Pairing) -> Callable[[Entrant], float]:
    def speed(entrant: Entrant) -> float:
        logs = pairing.of(entrant.index, reference.index).logs
        return float(logs.mean()) if len(logs) else math.inf

    return speed


def _of(field: Sequence[Entrant], engine: str) -> list[Entrant]:
    return [entrant for entrant in field if entrant.contestant.case.engine == engine]


def _is_default(entrant: Entrant) -> bool:
    case = entrant.contestant.case
    return (case.ddp or case.horovod) == DEFAULTS[case.engine]


def _ordered(firsts: dict[str, Entrant], reference: Entrant) -> Pair:
    """b is of the reference's engine."""
    b = "horovod" if reference.contestant.case.engine == "horovod" else "ddp"
    (a,) = (name for name in ENGINES if name != b)
    return firsts[a].index, firsts[b].index
