"""Order of launches, and which start up together."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from running import make_case

from benches.schedule import MOST_ALIVE, Turn, heats, turns
from benches.spec import Contestant, Study, build, plain


def study(names: dict[str, list[int]], launches: int) -> Study:
    """Contestants by name at these numbers of ranks."""
    contestants: list[dict[str, Any]] = []
    for seed, (name, sizes) in enumerate(names.items()):
        for ranks in sizes:
            case = plain(make_case("ddp", "gloo", ranks, seed=seed))
            contestants.append({"name": name, "point": {"ranks": ranks}, "case": case})
    return build(Study, {"name": "s", "contestants": contestants, "launches": launches})


@given(st.integers(1, 5), st.integers(1, 7))
def test_every_launch_once_and_first_places_balanced(contestants: int, launches: int) -> None:
    names = {f"c{i}": [1, 2] for i in range(contestants)}
    order = list(turns(study(names, launches)))
    assert len({(turn.case.id, turn.launch) for turn in order}) == len(order) == contestants * 2 * launches
    assert [turn.launch for turn in order] == sorted(turn.launch for turn in order)
    first = Counter(order[i].contestant.name for i in range(0, len(order), contestants))
    # Rotated: over any whole number of turns each stands first equally often, otherwise once more at most (two points).
    assert max(first.values()) - min([first[name] for name in names]) <= 2


def test_a_shared_case_is_launched_once() -> None:
    case = make_case("ddp", "gloo", 1)
    both = [{"name": name, "point": {}, "case": plain(case)} for name in ("a", "b")]
    order = list(turns(build(Study, {"name": "s", "contestants": both, "launches": 2})))
    assert [(turn.contestant.name, turn.launch) for turn in order] == [("a", 0), ("a", 1)]


def turn(ranks: int, threads: int = 1) -> Turn:
    case = make_case("ddp", "gloo", ranks, cluster={"ranks_per_node": ranks, "threads_per_rank": threads})
    return Turn(Contestant(name="c", case=case), 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=12), st.integers(1, 8))
def test_launches_of_a_heat_have_their_cores(sizes: list[tuple[int, int]], cores: int) -> None:
    due = [turn(*size) for size in sizes]
    made = list(heats(due, cores))
    assert [one for heat in made for one in heat] == due
    for heat in made:
        used = sum(one.case.cluster.ranks_per_node * one.case.cluster.threads_per_rank for one in heat)
        assert len(heat) == 1 or (used <= cores and len(heat) <= MOST_ALIVE)


def test_two_single_ranks_share_two_cores() -> None:
    assert [len(heat) for heat in heats([turn(1), turn(1), turn(1), turn(2), turn(1)], cores=2)] == [2, 1, 1, 1]
