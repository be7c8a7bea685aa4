"""Who meets whom in a study, and all its verdicts, which hold together: against references, and the two questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from analysis import compare, questions, stats
from analysis.compare import Comparison, Entrant
from analysis.pairing import Pairing, enough
from analysis.questions import Best, Pair, Question
from analysis.table import Records


@dataclass(frozen=True)
class Meetings:
    """The verdicts of a study, before its A/A control is heard."""

    comparisons: list[Comparison]
    questions: list[Question]
    chosen: list[Best]
    references: dict[int, int]
    """Place of the reference of each entrant."""


@dataclass(frozen=True)
class _Field:
    entrants: Sequence[Entrant]
    reference: Entrant
    default: Pair | None
    best: Best | None

    def pairs(self) -> Iterator[Pair]:
        """What the main launches are asked."""
        yield from compare.pairs(self.entrants, self.reference)
        if self.default:
            yield self.default
        if self.best and not self.best.chosen:
            yield self.best.pair


def meetings(records: Records, fields: Sequence[Sequence[Entrant]], main: Pairing, confirm: Pairing) -> Meetings:
    """All verdicts, simultaneous with stats.LEVEL over comparisons, chosen best and looks.

    A pair without a common launch is left out. main, confirm: the launches of either stage.
    """
    study = records.study
    alone = all(_ranks(entrants) == 1 for entrants in fields)
    found = [_field(entrants, main, study.reference, _ranks(entrants) > 1 or alone) for entrants in fields]
    pairs = dict.fromkeys(pair for field in found for pair in field.pairs())
    sound = {pair: paired for pair in pairs if len((paired := main.of(*pair)).logs)}
    chosen = [field.best for field in found if field.best and field.best.chosen]
    level = stats.simultaneous(stats.LEVEL, len(sound) + len(chosen), len(study.looks))
    judged = {pair: compare.judge(pair, paired, level, study.margin) for pair, paired in sound.items()}
    return Meetings(
        comparisons=list(judged.values()),
        questions=[q for field in found for q in _questions(field, judged, main, confirm, (level, study.margin))],
        chosen=chosen,
        references={entrant.index: field.reference.index for field in found for entrant in field.entrants},
    )


def _ranks(entrants: Sequence[Entrant]) -> int:
    return entrants[0].contestant.case.cluster.world_size


def _field(entrants: Sequence[Entrant], main: Pairing, wanted: dict[str, object], asked: bool) -> _Field:
    """asked: the questions are put to it; not to one rank beside larger worlds, where engines have nothing to do."""
    reference = compare.reference_of(entrants, wanted)
    if not asked:
        return _Field(entrants, reference, None, None)
    best = questions.best_pair(entrants, reference, main)
    return _Field(entrants, reference, questions.default_pair(entrants, reference), best)


def _questions(
    field: _Field, judged: dict[Pair, Comparison], main: Pairing, confirm: Pairing, bar: tuple[float, float]
) -> Iterator[Question]:
    """bar: level and margin."""
    if field.default in judged:
        yield Question("default", judged[field.default], confirmed=True)
    if field.best is None:
        return
    pair = field.best.pair
    if not field.best.chosen:
        if pair in judged:
            yield Question("best", judged[pair], confirmed=True)
        return
    fresh, known = confirm.direct(*pair), main.of(*pair)
    if enough(fresh, known):
        yield Question("best", compare.judge(pair, fresh, *bar), confirmed=True)
    elif pair in judged:
        yield Question("best", judged[pair], confirmed=False)
    elif len(known.logs):
        # Picked from all pairs of both engines by the very launches that judge it: no interval covers that choice.
        unjudged = replace(compare.judge(pair, known, *bar), verdict="inconclusive", direction=None)
        yield Question("best", unjudged, confirmed=False)
