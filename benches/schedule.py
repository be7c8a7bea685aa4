"""Which launches a study consists of, which of them are alive together, and in which order they take turns."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from analysis import compare
from analysis.compare import Entrant
from benches.spec import AGAIN_FROM, Case, Contestant, Study

CONTROL_COPY = 1
"""Number of the copy that is the A/A control."""


T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """One launch that is due."""

    contestant: Contestant
    launch: int

    @property
    def case(self) -> Case:
        return self.contestant.case


def arrange(
    contestants: Sequence[Contestant], reference: dict[str, Any], *, max_alive: int, control: bool
) -> list[Contestant]:
    """The contestants in heats, with the copies of the reference that the heats need behind them.

    Those that are compared, or are a baseline of such, share a heat. Where they are more than `max_alive`, they meet in
    several heats, and the reference of each field in each of its heats: copies of it, from number 2 on.
    """
    arranged: dict[int, Contestant] = {}
    copies: list[Contestant] = []
    seats = _Seats()
    for group in _groups(contestants):
        fields = _fields(group, contestants, reference)
        controls = _controls(fields, contestants) if control else []
        cases = {contestants[index].case.id for index in group}
        if len(cases) + len(controls) <= max_alive:
            heats: list[_Heat] = [(group, controls, [])]
        else:
            heats = list(_split(fields, contestants, controls, max_alive, seats))
        for members, beside, again in heats:
            heat = seats.next_heat()
            for index in members:
                arranged[index] = _in_heat(contestants[index], seats.take(contestants[index], heat))
            copies += [_copy(contestants[index], heat, CONTROL_COPY) for index in beside]
            copies += [_copy(contestants[index], heat, seats.next_copy(contestants[index])) for index in again]
    return [*(arranged[index] for index in range(len(contestants))), *copies]


class _Seats:
    """Where each case runs, and how many copies of it there are."""

    def __init__(self) -> None:
        self._heats: dict[str, int] = {}
        self._copies: Counter[str] = Counter()
        self._count = itertools.count()

    def next_heat(self) -> int:
        return next(self._count)

    def take(self, contestant: Contestant, heat: int) -> int:
        """Heat in which the case runs: the first that it was in, for a case is launched once."""
        return self._heats.setdefault(contestant.case.id, heat)

    def taken(self, contestant: Contestant) -> bool:
        return contestant.case.id in self._heats

    def next_copy(self, contestant: Contestant) -> int:
        self._copies[contestant.case.id] += 1
        return CONTROL_COPY + self._copies[contestant.case.id]


_Heat = tuple[list[int], list[int], list[int]]
"""Places of those that run in it, of the references whose control does, and of those that are there as copies."""


def _split(
    fields: Sequence[tuple[int, list[int]]],
    contestants: Sequence[Contestant],
    controls: Sequence[int],
    max_alive: int,
    seats: _Seats,
) -> Iterator[_Heat]:
    """Heats of a group that is too large for one. The reference of a field is in each of its heats."""
    for first, members in fields:
        known = [index for index in members if index != first and seats.taken(contestants[index])]
        others = [index for index in members if index != first and index not in known]
        beside = [first] if first in controls else []
        there = seats.taken(contestants[first])
        for turn, chunk in enumerate(_chunks(others, max_alive - 1, max_alive - 1 - len(beside))):
            own = [first] if turn == 0 or there else []
            again = [first] if turn or there else []
            # Those that run elsewhere already keep the heat that they have.
            yield [*own, *chunk, *(known if turn == 0 else [])], beside if turn == 0 else [], again


def _groups(contestants: Sequence[Contestant]) -> list[list[int]]:
    """Places of contestants that share all but the shape of the cluster, so that efficiency is paired too.

    Groups that have a case in common are one: it is launched once, and meets them all.
    """
    found: dict[str, list[int]] = {}
    for index, contestant in enumerate(contestants):
        found.setdefault(_group_of(contestant), []).append(index)
    groups: list[list[int]] = []
    for group in found.values():
        cases = {contestants[index].case.id for index in group}
        touched = [one for one in groups if any(contestants[index].case.id in cases for index in one)]
        groups = [one for one in groups if one not in touched]
        groups.append(sorted(itertools.chain(group, *touched)))
    return sorted(groups)


def _group_of(contestant: Contestant) -> str:
    point = {key: value for key, value in contestant.point.items() if key.split(".")[0] != "cluster"}
    return json.dumps(point, sort_keys=True)


def _fields(
    group: Sequence[int], contestants: Sequence[Contestant], reference: dict[str, Any]
) -> list[tuple[int, list[int]]]:
    """The places that meet in verdicts, each field behind its reference; baselines follow, behind the first of them."""
    entrants = [Entrant(index, contestants[index], ()) for index in group]
    fields = [
        (compare.reference_of(field, reference).index, [entrant.index for entrant in field])
        for field in compare.fields(entrants)
    ]
    placed = {index for _, members in fields for index in members}
    rest = [index for index in group if index not in placed]
    return [*fields, (rest[0], rest)] if rest else fields


def _controls(fields: Sequence[tuple[int, list[int]]], contestants: Sequence[Contestant]) -> list[int]:
    """References in which something is compared, at the largest of their world sizes: there noise is largest."""
    sizes = {first: contestants[first].case.cluster.world_size for first, members in fields if len(members) > 1}
    largest = [first for first, size in sizes.items() if size == max(sizes.values())]
    return list({contestants[first].case.id: first for first in reversed(largest)}.values())[::-1]


def _chunks(items: Sequence[int], room: int, first_room: int) -> Iterator[Sequence[int]]:
    """Slices of at most `room` items, the first of at most `first_room`; one, empty, where there are no items."""
    yield items[:first_room]
    for start in range(first_room, len(items), room):
        yield items[start : start + room]


def _in_heat(contestant: Contestant, heat: int) -> Contestant:
    return msgspec.structs.replace(contestant, heat=heat)


def _copy(contestant: Contestant, heat: int, copy: int) -> Contestant:
    name = f"{contestant.name} (again)" if copy == CONTROL_COPY else f"{contestant.name} (heat {copy})"
    return msgspec.structs.replace(contestant, name=name, heat=heat, copy=copy)


def once(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Those that are launched: a case that stands at several points is launched once."""
    return list({contestant.key: contestant for contestant in reversed(contestants)}.values())[::-1]


def turns(study: Study, launches: Iterable[int], only: Iterable[int] | None = None) -> Iterator[Turn]:
    """Launches with these numbers, of all contestants or of those at the places `only`, in the order in which they run.

    Launch by launch and heat by heat, so that a slow drift of the machine hits all alike. From launch to launch heats,
    and contestants within a heat, are in the balanced order of `orders`: whatever one that ran just before leaves
    behind (heat, caches) meets all alike too, which matters under `relaunch`.
    """
    chosen = once(study.contestants if only is None else [study.contestants[index] for index in only])
    seed = study.hash
    for launch in launches:
        heats: dict[str, list[Turn]] = {}
        for contestant in chosen:
            turn = Turn(contestant, launch)
            heats.setdefault(_heat_of(turn), []).append(turn)
        for name in _balanced(list(heats), launch, seed):
            yield from _balanced(heats[name], launch, f"{seed} {name}")


def _balanced(row: Sequence[T], launch: int, seed: str) -> list[T]:
    """In the order of this launch; those of each stage of a study begin anew."""
    number = launch % AGAIN_FROM
    return [row[place] for place in orders(len(row), number + 1, seed)[number]]


def heats(study: Study, due: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Launches that are alive together: those of one heat and number; under `relaunch` each alone.

    The few that check or confirm something meet in one heat, whatever heats they had before.
    """
    for _, heat in itertools.groupby(due, key=lambda turn: (turn.launch, _heat_of(turn))):
        if study.schedule == "duel":
            yield list(heat)
        else:
            yield from ([turn] for turn in heat)


def _heat_of(turn: Turn) -> str:
    return str(turn.contestant.heat) if turn.launch < AGAIN_FROM else _group_of(turn.contestant)


def orders(count: int, rounds: int, seed: str) -> list[list[int]]:
    """Who runs when: for each round the places 0 … count-1 in order.

    Rows of Latin squares balanced for what ran just before (Williams 1949): over `count` rounds each has each place
    once and, for even counts, follows each other one once; for odd ones that takes two squares. `seed` shuffles names
    and the rows within a square; where there are more rounds, further squares follow with another shuffle.
    """
    generator = random.Random(seed)
    rows: list[list[int]] = []
    while count and len(rows) < rounds:
        names = generator.sample(range(count), count)
        for square in _williams(count):
            rows += [[names[place] for place in row] for row in generator.sample(square, count)]
    return rows[:rounds]


def _williams(count: int) -> list[list[list[int]]]:
    """One square for even counts, two for odd ones."""
    # 0, n-1, 1, n-2, …: neighbours differ by each amount once.
    first = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    square = [[(value + row) % count for value in first] for row in range(count)]
    return [square] if count % 2 == 0 else [square, [row[::-1] for row in square]]
