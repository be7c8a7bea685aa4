"""What the checks on virtual nodes make of what they measured: the ring's bound, and the optimum of a sweep."""

from __future__ import annotations

import argparse

import pytest

from benches.checks import bucket_optimum, ring_check
from benches.checks.bucket_optimum import agree, inside
from benches.checks.duels import CELLS
from benches.checks.ring_check import bound, judge


def test_the_ring_check_runs_every_cell_on_the_nodes_and_links_that_were_asked_for() -> None:
    study = ring_check.study_of(argparse.Namespace(nodes=3, link_gbps=2.5))
    assert sorted(one.case.cell for one in study.contestants) == sorted(CELLS)
    shapes = {(one.case.cluster.name, one.case.cluster.nodes, one.case.cluster.link_gbps) for one in study.contestants}
    assert shapes == {("virtual", 3, 2.5)}


def test_the_bound_is_that_of_the_slowest_node() -> None:
    # Each of four nodes sends 1.5 times the 100 MB, 1.2 Gb, at 0.8 Gb/s.
    assert bound(4, [0.8, 1.0, 1.0, 1.0]) == pytest.approx(1.5)
    assert bound(2, [0.8, 0.8]) == pytest.approx(1.0)


def test_a_cell_that_beats_the_bound_fails_and_so_does_a_best_one_that_is_far_from_it() -> None:
    lines = judge({"a": 1.04, "b": 1.5}, 1.0, 5)
    assert [line.holds for line in lines] == [True, True, True]
    assert lines[-1].what == "best cell: a"
    assert [line.holds for line in judge({"a": 1.16, "b": 1.5}, 1.0, 5)] == [True, True, False]
    assert [line.holds for line in judge({"a": 0.98, "b": 1.04}, 1.0, 5)] == [False, True, True]
    assert judge({}, 1.0, 5) == []


TWO_SIDED = {0.1: 3.0, 1.0: 2.2, 5.0: 2.0, 25.0: 2.1, 200.0: 2.9}


def test_an_optimum_at_an_end_or_on_a_plateau_is_not_inside() -> None:
    assert inside(TWO_SIDED)
    assert not inside({**TWO_SIDED, 0.1: 1.9})
    assert not inside({**TWO_SIDED, 200.0: 2.05})
    assert not inside({1.0: 2.0, 5.0: 1.0})
    assert not inside({})


def test_sweeps_agree_where_the_best_of_each_is_as_good_in_the_other() -> None:
    assert agree(TWO_SIDED, {**TWO_SIDED, 5.0: 2.05})
    near = {**TWO_SIDED, 25.0: 2.03}
    assert agree(near, {**near, 5.0: 2.05}), "another size is best, and both times by too little to tell"
    assert not agree(TWO_SIDED, {**TWO_SIDED, 25.0: 1.99}), "the first sweep tells them apart"
    assert not agree(TWO_SIDED, {size: seconds for size, seconds in TWO_SIDED.items() if size != 1.0})


def test_the_table_holds_both_sweeps_and_judges_each() -> None:
    lines = bucket_optimum.lines([(TWO_SIDED, {"virtual"}), ({**TWO_SIDED, 0.1: 1.0}, {"host-bound"})])
    judged = {line.what: line.holds for line in lines if line.holds is not None}
    assert judged == {
        "sweep 1: the optimum lies inside": True,
        "sweep 2: the optimum lies inside": False,
        "the sweeps agree on it": False,
    }
    assert [line.value for line in lines if line.what.endswith("the time")] == ["not host-bound", "host-bound"]
    assert bucket_optimum.lines([])[-1].holds is False
