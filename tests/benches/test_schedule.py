"""Heats, their copies of the reference, and who runs when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from running import make_case

from benches.schedule import CONTROL_COPY, Turn, arrange, heats, orders, turns
from benches.spec import Contestant, Study

Fields = dict[tuple[int, int], list[Contestant]]
"""Contestants that are compared with each other, by point and world size, the reference first."""


def contestants(points: int, sizes: int, each: int, local: bool) -> list[Contestant]:
    """`each` contestants at these many world sizes of each point; `local`: the bare model beside them."""
    found = []
    for point in range(points):
        for ranks in range(1, sizes + 1):
            where = {"seed": point, "cluster.ranks_per_node": ranks}
            for number in range(each):
                case = make_case("ddp", "gloo", ranks, seed=point, warmup_steps=10 + number)
                found.append(Contestant(name=f"c{number}", point=where, case=case))
            if local and ranks == 1:
                case = make_case("local", None, 1, seed=point)
                found.append(Contestant(name="local", point=where, case=case))
    return found


def fields(found: list[Contestant]) -> Fields:
    made: Fields = {}
    for one in found:
        if one.case.engine != "local":
            made.setdefault((one.point["seed"], one.case.cluster.world_size), []).append(one)
    return made


def members(arranged: list[Contestant]) -> dict[int, list[Contestant]]:
    made: dict[int, list[Contestant]] = {}
    for one in arranged:
        made.setdefault(one.heat, []).append(one)
    return made


shapes = st.fixed_dictionaries(
    {"points": st.integers(1, 2), "sizes": st.integers(1, 3), "each": st.integers(1, 6), "local": st.booleans()}
)


@given(shapes, st.integers(2, 9), st.booleans())
def test_all_have_a_heat_with_their_reference_and_none_is_too_large(
    shape: dict[str, Any], max_alive: int, control: bool
) -> None:
    found = contestants(**shape)
    arranged = arrange(found, {}, max_alive=max_alive, control=control)
    own, copies = arranged[: len(found)], arranged[len(found) :]
    assert [(one.name, one.case, one.copy) for one in own] == [(one.name, one.case, 0) for one in found]
    assert all(one.copy for one in copies)
    assert len({one.key for one in arranged}) == len(arranged)
    made = members(arranged)
    assert sorted(made) == list(range(len(made)))
    assert all(len(heat) <= max_alive for heat in made.values())
    for field in fields(own).values():
        for one in field:
            assert field[0].case in [beside.case for beside in made[one.heat]]


@given(shapes, st.integers(2, 9))
def test_the_control_stands_beside_its_original_at_the_largest_world_size(
    shape: dict[str, Any], max_alive: int
) -> None:
    found = contestants(**shape)
    arranged = arrange(found, {}, max_alive=max_alive, control=True)
    originals = {one.case.id: one for one in arranged if not one.copy}
    controls = [one for one in arranged if one.copy == CONTROL_COPY]
    assert {one.case.cluster.world_size for one in controls} == ({shape["sizes"]} if shape["each"] > 1 else set())
    assert len(controls) == (shape["points"] if shape["each"] > 1 else 0)
    assert all(one.heat == originals[one.case.id].heat for one in controls)


@given(shapes, st.integers(2, 9))
def test_without_a_control_copies_only_stand_in_for_the_reference(shape: dict[str, Any], max_alive: int) -> None:
    arranged = arrange(contestants(**shape), {}, max_alive=max_alive, control=False)
    assert CONTROL_COPY not in {one.copy for one in arranged}
    for heat in members(arranged).values():
        assert len({one.case.id for one in heat}) == len(heat)


def test_heats_that_are_too_large_share_the_reference_that_the_study_names() -> None:
    found = contestants(points=1, sizes=1, each=6, local=False)
    arranged = arrange(found, {"warmup_steps": 12}, max_alive=3, control=True)
    heats = [[(one.name, one.copy) for one in heat] for heat in members(arranged).values()]
    assert heats == [
        [("c0", 0), ("c2", 0), ("c2 (again)", 1)],
        [("c1", 0), ("c3", 0), ("c2 (heat 2)", 2)],
        [("c4", 0), ("c5", 0), ("c2 (heat 3)", 3)],
    ]


def test_world_sizes_and_the_bare_model_share_a_heat_where_they_fit() -> None:
    found = contestants(points=2, sizes=2, each=2, local=True)
    arranged = arrange(found, {}, max_alive=6, control=True)
    assert [len(heat) for heat in members(arranged).values()] == [6, 6]


SHARED: dict[str, Callable[[int], tuple[int, int]]] = {
    "by all but the reference": lambda axis: (0, axis),
    "by the reference": lambda axis: (axis, 0),
}


@pytest.mark.parametrize("case", list(SHARED))
def test_whoever_meets_at_two_points_with_one_case_is_alive_beside_both(case: str) -> None:
    """An axis may be nothing to one of the engines: its case is launched once, and must not miss a verdict."""
    found = []
    for axis in (1, 2):
        ours, theirs = SHARED[case](axis)
        for name, engine, seed in (("ddp", "ddp", ours), ("horovod", "horovod", theirs)):
            one = make_case(engine, "gloo", 2, seed=seed)
            found.append(Contestant(name=name, point={"axis": axis}, case=one))
    study = Study(name="s", contestants=tuple(arrange(found, {}, max_alive=8, control=True)), launches=1)
    alive = [{turn.case.id for turn in heat} for heat in heats(study, turns(study, [0]))]
    for ddp, horovod in zip(found[::2], found[1::2], strict=True):
        assert any({ddp.case.id, horovod.case.id} <= heat for heat in alive)


def small(launches: int = 3, each: int = 3, **more: Any) -> Study:
    found = contestants(points=2, sizes=1, each=each, local=False)
    return Study(
        name="s",
        contestants=tuple(arrange(found, {}, max_alive=8, control=True)),
        launches=launches,
        **more,
    )


@given(st.integers(1, 5), st.integers(1, 7))
def test_every_launch_once_by_number_and_heat_and_each_starts_first_equally_often(each: int, launches: int) -> None:
    study = small(launches, each)
    order = list(turns(study, range(launches)))
    assert len({(turn.contestant.key, turn.launch) for turn in order}) == len(order)
    assert len(order) == len(study.contestants) * launches
    launched = [turn.launch for turn in order]
    assert launched == sorted(launched)
    made = list(heats(study, order))
    assert [turn for heat in made for turn in heat] == order
    places = [(heat[0].launch, heat[0].contestant.heat) for heat in made]
    assert len(places) == len(set(places)), "a heat of a launch is in one piece"
    first = Counter(heat[0].contestant.key for heat in made)
    counts = [first[one.key] for one in study.contestants]
    assert max(counts) - min(counts) <= 1


def test_only_those_that_are_asked_for_and_only_these_numbers() -> None:
    study = small()
    found = [(turn.contestant.key, turn.launch) for turn in turns(study, range(1000, 1002), [4, 0])]
    wanted = {study.contestants[place].key for place in (0, 4)}
    assert {key for key, _ in found} == wanted
    assert sorted(launch for _, launch in found) == [1000, 1000, 1001, 1001]


def test_under_relaunch_each_is_alone_in_the_same_order() -> None:
    study = small(schedule="relaunch")
    order = list(turns(study, range(2)))
    assert list(heats(study, order)) == [[turn] for turn in order]


def test_under_relaunch_none_always_runs_behind_the_same_one() -> None:
    """A, B, C by rotation alone: B follows A in four launches of six, and C in none."""
    study = Study(name="s", contestants=tuple(contestants(points=1, sizes=1, each=3, local=False)), launches=6)
    rows = [[turn.contestant.key for turn in turns(study, [launch])] for launch in range(study.launches)]
    followed = Counter(pair for row in rows for pair in pairwise(row))
    assert set(followed.values()) == {2}
    assert len(followed) == 3 * 2


def test_heats_take_turns_in_being_first() -> None:
    study = small(launches=4)
    made = heats(study, turns(study, range(study.launches)))
    first = {heat[0].launch: heat[0].contestant.heat for heat in reversed(list(made))}
    count = len({one.heat for one in study.contestants})
    assert sorted(Counter(first.values()).values()) == [study.launches // count] * count


def test_the_order_is_the_studys_own() -> None:
    found = {str([turn.contestant.key for turn in turns(small(rounds=rounds), [0])]) for rounds in range(1, 9)}
    assert len(found) > 1


def test_a_case_that_stands_at_two_points_is_launched_once() -> None:
    case = make_case("ddp", "gloo", 1)
    both = tuple(Contestant(name=name, point={"axis": name}, case=case) for name in ("a", "b"))
    study = Study(name="s", contestants=both)
    assert list(turns(study, range(2))) == [Turn(both[0], 0), Turn(both[0], 1)]


@given(st.integers(1, 9), st.integers(0, 30), st.text(max_size=5))
def test_each_round_is_a_permutation_decided_by_the_seed(count: int, rounds: int, seed: str) -> None:
    found = orders(count, rounds, seed)
    assert len(found) == rounds
    assert all(sorted(row) == list(range(count)) for row in found)
    assert found == orders(count, rounds, seed)


@given(st.integers(1, 9), st.text(max_size=5))
@example(3, "2")
def test_over_as_many_rounds_as_contestants_each_has_each_place_once(count: int, seed: str) -> None:
    """A Latin square, also in the second lot of rounds."""
    found = orders(count, 2 * count, seed)
    for rows in (found[:count], found[count:]):
        assert all(len({row[place] for row in rows}) == count for place in range(count))


@given(st.integers(2, 9), st.text(max_size=5))
def test_each_follows_each_other_equally_often(count: int, seed: str) -> None:
    """First-order balance within rounds: over one square where the count is even, over two where it is odd."""
    rounds = count if count % 2 == 0 else 2 * count
    followed = Counter(pair for row in orders(count, rounds, seed) for pair in pairwise(row))
    assert len(followed) == count * (count - 1)
    assert set(followed.values()) == {rounds // count}


def test_seeds_give_different_orders() -> None:
    assert len({str(orders(4, 4, str(seed))) for seed in range(20)}) > 15
