"""Ratios launch by launch: which times of two contestants belong together, also across heats. Logarithms of ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import stats
from benches.spec import Contestant


@dataclass(frozen=True)
class Paired:
    """log(step time of a ÷ step time of b)."""

    logs: pd.Series
    """One value a launch that both have, by launch."""
    rounds: pd.DataFrame
    """Rows launches, columns blocks; NaN where either has no such block."""
    joined: bool = False
    """Through the reference: a and b were never alive together."""


@dataclass(frozen=True)
class Member:
    """What decides with whom a contestant is paired, and by way of whom."""

    heat: int
    copy: int
    case: object
    """Equal for a contestant and its copies."""
    field: object
    """Equal for those that are compared."""


def members(contestants: Sequence[Contestant]) -> dict[int, Member]:
    """Of a study, by place; compared are those of one point and world size."""
    fields = [(one.point, one.case.cluster.world_size) for one in contestants]
    pairs = enumerate(zip(contestants, fields, strict=True))
    return {place: Member(one.heat, one.copy, one.case, field) for place, (one, field) in pairs}


def enough(further: Paired, main: Paired) -> bool:
    """Whether a further set of launches can be heard against the main one: half as many, and two at the least."""
    return len(further.logs) >= max(2, len(main.logs) / 2)


class Pairing:
    """Step times of one stage, and who stands for the reference in which heat.

    Contestants of one heat are paired block by block: the machine's drift hit both alike. Between heats a ÷ b is taken
    as (a ÷ reference in a's heat) ÷ (b ÷ reference in b's heat), launch by launch, so that the noise of both meetings
    is in the spread of launches. Against the reference itself, its copy in the contestant's own heat is met directly.
    """

    def __init__(self, members: Mapping[int, Member], blocks: pd.DataFrame) -> None:
        """blocks: columns contestant, launch, block, step_time_s (table.Records.blocks), of one stage."""
        self.members = members
        self.times = step_times(blocks)
        self.present = _stand_ins(members)

    def of(self, a: int, b: int) -> Paired:
        """a, b: places in the study; without a common launch, no values."""
        heats = [self.members[place].heat for place in (a, b)]
        if heats[0] == heats[1]:
            return self.direct(a, b)
        for reference, by_heat in self.present.items():
            if heats[0] in by_heat and heats[1] in by_heat and self._meet(reference, a, b):
                return self._through(by_heat, reference, a, b)
        return self.direct(a, b)

    def direct(self, a: int, b: int) -> Paired:
        """Paired by launch and block, whatever the heats."""
        if a not in self.times or b not in self.times:
            return Paired(pd.Series(dtype=float), pd.DataFrame())
        left, right = self.times[a].align(self.times[b], join="inner")
        rounds = np.log(left) - np.log(right)
        logs = pd.Series(stats.hodges_lehmann(rounds.to_numpy()), index=rounds.index)
        return Paired(logs.dropna(), rounds)

    def _through(self, by_heat: Mapping[int, int], reference: int, a: int, b: int) -> Paired:
        heats = [self.members[place].heat for place in (a, b)]
        if reference == b:
            return self.direct(a, by_heat[heats[0]])
        if reference == a:
            return self.direct(by_heat[heats[1]], b)
        left, right = self.direct(a, by_heat[heats[0]]), self.direct(b, by_heat[heats[1]])
        return Paired((left.logs - right.logs).dropna(), left.rounds - right.rounds, joined=True)

    def _meet(self, *places: int) -> bool:
        """Whether these are compared at all."""
        fields = [self.members[place].field for place in places]
        return all(field == fields[0] for field in fields)


def step_times(blocks: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Step times of each contestant in seconds: rows launches, columns blocks."""
    return {
        int(str(index)): group.pivot(index="launch", columns="block", values="step_time_s")
        for index, group in blocks.groupby("contestant")
    }


def original(members: Mapping[int, Member], copy: Member) -> int | None:
    """Place of the contestant that `copy` is a copy of."""
    same = (
        place for place, one in members.items() if not one.copy and (one.case, one.field) == (copy.case, copy.field)
    )
    return next(same, None)


def _stand_ins(members: Mapping[int, Member]) -> dict[int, dict[int, int]]:
    """By place of a contestant that has copies in further heats: who is it in which heat."""
    found: dict[int, dict[int, int]] = {}
    for place, one in members.items():
        if one.copy > 1 and (source := original(members, one)) is not None:
            found.setdefault(source, {members[source].heat: source})[one.heat] = place
    return found
