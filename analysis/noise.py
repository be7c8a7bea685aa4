"""The A/A control: the reference against a copy of itself. What it differs by is noise, or a fault of the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

from analysis import stats
from analysis.compare import Comparison, judge
from analysis.estimate import Estimate
from analysis.pairing import Pairing, enough, original
from benches.schedule import CONTROL_COPY
from benches.spec import Contestant

MARK = "A/A"

State = Literal["quiet", "suspicious", "cleared", "confirmed"]


@dataclass(frozen=True)
class Control:
    """One A/A pair, judged at stats.CONTROL_LEVEL by an interval of its own."""

    comparison: Comparison
    """a: the copy, b: the reference."""
    again: Estimate | None
    """The same ratio from the further set of launches that a suspicious control brings; None before half of it is
    there."""
    margin: float
    over: bool = True
    """Whether each launch of the further set has a record, however it ended."""

    @property
    def state(self) -> State:
        """quiet: its interval holds 1; suspicious: it does not, and further launches have not decided yet; confirmed:
        theirs excludes 1 on the same side; cleared: it does not once the set is over. Before that it can accuse but not
        clear, since the interval of a few launches holds almost anything."""
        if self.comparison.direction is None:
            return "quiet"
        if self.again is None:
            return "suspicious"
        if stats.direction(self.again) == self.comparison.direction:
            return "confirmed"
        return "cleared" if self.over else "suspicious"

    @property
    def floor(self) -> float:
        """What two copies of one contestant may differ by: smaller differences cannot be told from noise. A fraction;
        infinite below two launches."""
        return self.outer - 1

    @property
    def established(self) -> bool:
        """Whether the control is known as closely as the margin asks."""
        return self.half_width <= self.margin

    @property
    def half_width(self) -> float:
        """Of its own interval, as a fraction; infinite below two launches."""
        return stats.half_width(self.comparison.ratio)

    @property
    def outer(self) -> float:
        """The bound that is farthest from 1, of both sets of launches, as a factor of at least 1."""
        found = [self.comparison.ratio, *([self.again] if self.again else [])]
        return max(max(ratio.high, 1 / ratio.low if ratio.low else float("inf")) for ratio in found)


def controls(
    contestants: Sequence[Contestant],
    sound: AbstractSet[int],
    pairing: Pairing,
    again: Pairing,
    tried: Mapping[int, int],
    margin: float,
) -> Iterator[Control]:
    """The controls that were measured; pairing: the main launches, again: the further ones, tried: by contestant, how
    many of those have a record, however they ended."""
    for place, one in enumerate(contestants):
        reference = original(pairing.members, pairing.members[place])
        if one.copy != CONTROL_COPY or reference is None or not {place, reference} <= sound:
            continue
        paired, further = pairing.of(place, reference), again.direct(place, reference)
        if len(paired.logs):
            found = judge((place, reference), paired, stats.CONTROL_LEVEL, margin)
            more = stats.ratio_of_pairs(further.logs, stats.CONTROL_LEVEL) if enough(further, paired) else None
            over = min(tried.get(one, 0) for one in (place, reference)) >= found.ratio.n
            yield Control(found, more, margin, over)


def weigh(found: Comparison, control: Control | None) -> Comparison:
    """The comparison under a control that is confirmed: what the control's own difference could undo is inconclusive.

    A verdict stands if it would be the same with its interval wider by the control's outer bound on either side; what
    the wider interval no longer says of the direction is not said.
    """
    if control is None or control.state != "confirmed":
        return found
    ratio = found.ratio
    wider = replace(ratio, low=ratio.low / control.outer, high=ratio.high * control.outer)
    stands = stats.verdict(wider, control.margin) == found.verdict
    word = found.verdict if stands else "inconclusive"
    return replace(found, verdict=word, direction=stats.direction(wider), marks=(*found.marks, MARK))
