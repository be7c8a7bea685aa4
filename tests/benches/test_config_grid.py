"""Expansion of contestants and axes: properties that hold for every grid."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benches import grid
from benches.errors import UserError
from benches.overrides import Delete

# A busy machine must not fail them, and grids are small.
checked = settings(deadline=None, max_examples=60)

# Keys with values of their own, so that any mixture of them is a grid.
VALUES: dict[str, list[Any]] = {
    "transport": ["gloo", "mpi", "nccl"],
    "precision": ["fp32", "bf16"],
    "compile": [True, False],
    "seed": [1, 2],
    "ddp.bucket_cap_mb": [None, 1.0, 25.0],
    "horovod.cycle_time_ms": [0.5, 1.0],
    "model": ["mlp", "digits"],
    "model.kwargs.sizes": [[1, 2], [3], []],
    "optimizer.weight_decay": [0.0, 0.1],
}
NAMES = st.sampled_from(["ddp", "horovod", "local", "a-b", "a_1"])


def sweeps(keys: list[str]) -> st.SearchStrategy[grid.Sweep]:
    chosen = st.lists(st.sampled_from(keys), unique=True, max_size=3)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries(
            {name: st.lists(st.sampled_from(VALUES[name]), min_size=1, unique_by=repr) for name in names}
        )
    )


@st.composite
def grids(draw: st.DrawFn) -> grid.Grid:
    keys = draw(st.permutations(list(VALUES)))
    axes = draw(sweeps(keys[:4]))
    contestants = draw(st.dictionaries(NAMES, sweeps(keys[4:]), min_size=1, max_size=3))
    return grid.Grid(contestants, axes)


def nested(sweep: grid.Sweep) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, values in sweep.items():
        *parents, name = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = values
    return tree


@checked
@given(grids())
def test_every_contestant_meets_every_other_at_every_point(found: grid.Grid) -> None:
    rows = list(grid.expand(found))
    assert len(rows) == found.size
    points = [repr(row.point) for row in rows]
    assert len(set(points)) == math.prod(map(len, found.axes.values()))
    per_point = {point: sorted(row.name for row in rows if repr(row.point) == point) for point in points}
    assert len({tuple(names) for names in per_point.values()}) == 1


@checked
@given(grids())
def test_rows_of_a_point_differ_and_carry_all_their_values(found: grid.Grid) -> None:
    rows = list(grid.expand(found))
    assert len({repr((row.point, row.key, row.own)) for row in rows}) == len(rows)
    for row in rows:
        assert row.values == {**row.point, **row.own}
        assert set(row.own) == set(found.contestants[row.key])
        assert row.settings == {key: row.own[key] for key in row.own if len(found.contestants[row.key][key]) > 1}
        assert (row.name == row.key) == (not row.settings)


@checked
@given(grids())
def test_points_stay_together_and_the_last_axis_turns_fastest(found: grid.Grid) -> None:
    points = [repr(row.point) for row in grid.expand(found)]
    changes = sum(one != other for one, other in itertools.pairwise(points))
    assert changes == len(set(points)) - 1


@checked
@given(grids())
def test_reading_nested_mappings_gives_the_same_grid(found: grid.Grid) -> None:
    # A file cannot hold a group's choice beside values inside that group: one key would be two things.
    for sweep in (found.axes, *found.contestants.values()):
        if "model" in sweep:
            sweep.pop("model.kwargs.sizes", None)
    study = {
        "axes": nested(found.axes),
        "contestants": {name: nested(sweep) for name, sweep in found.contestants.items()},
    }
    assert grid.read(study) == found


def test_one_value_is_a_sweep_of_one() -> None:
    found = grid.read({"contestants": {"ddp": {"transport": "gloo"}}, "axes": {"seed": 3}})
    assert found == grid.Grid({"ddp": {"transport": ["gloo"]}}, {"seed": [3]})


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "ddp"),
        ({"transport": "mpi"}, "ddp-mpi"),
        ({"ddp.bucket_cap_mb": None}, "ddp-bucket_cap_mb=null"),
        ({"ddp.bucket_cap_mb": 25.0, "compile": True}, "ddp-bucket_cap_mb=25-compile=true"),
        ({"model.kwargs.sizes": [1, 2]}, "ddp-sizes=[1,2]"),
        ({"model.kwargs.x": 1, "model.batch_kwargs.x": 2}, "ddp-model.kwargs.x=1-model.batch_kwargs.x=2"),
    ],
)
def test_names_say_what_a_contestant_sweeps(settings: dict[str, Any], name: str) -> None:
    assert grid.row_name("ddp", settings) == name


def test_an_edit_leaves_what_it_edits_as_it_was() -> None:
    study = {"contestants": {"a": {"engine": "ddp"}}, "axes": {}}
    changed = grid.edit(
        study,
        [
            ("study.axes.cluster.ranks_per_node", [1, 2]),
            ("study.contestants.a.engine", "local"),
            ("study.contestants.b.engine", "ddp"),
            ("study.contestants.b", Delete),
        ],
    )
    assert changed == {"contestants": {"a": {"engine": "local"}}, "axes": {"cluster": {"ranks_per_node": [1, 2]}}}
    assert study == {"contestants": {"a": {"engine": "ddp"}}, "axes": {}}


@pytest.mark.parametrize("name", ["a.b", "a/b", "../x", "-a", ""])
def test_a_contestants_name_is_plain(name: str) -> None:
    with pytest.raises(UserError, match="name takes letters, digits"):
        grid.read({"contestants": {name: {"engine": "ddp"}}})
