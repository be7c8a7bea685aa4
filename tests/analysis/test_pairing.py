"""Which times belong together: rounds of one heat, and heats joined through the reference, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from planted import Plant, contestant, make_case

from analysis import summary, table
from analysis.pairing import Pairing, members

Make = Callable[..., Path]
DDP, HOROVOD, OTHER = make_case("ddp", "gloo", 2), make_case("horovod", "gloo", 2), make_case("horovod", "mpi", 2)
HEATS = members(
    [
        contestant(Plant(DDP, 0)),
        contestant(Plant(HOROVOD, 0)),
        contestant(Plant(OTHER, 0, heat=1)),
        contestant(Plant(DDP, 0, name="ddp (heat 2)", copy=2, heat=1)),
    ]
)
"""The reference and horovod/gloo in heat 0; horovod/mpi and the reference's copy in heat 1."""


def blocks(times: dict[int, list[list[float]]]) -> pd.DataFrame:
    """times: by contestant, launches of blocks."""
    rows = [
        {"contestant": who, "launch": launch, "block": block, "step_time_s": seconds}
        for who, launches in times.items()
        for launch, own in enumerate(launches)
        for block, seconds in enumerate(own)
    ]
    return pd.DataFrame(rows, columns=["contestant", "launch", "block", "step_time_s"])


def test_heats_are_joined_through_the_reference_by_hand() -> None:
    # Heat 1 ran while the machine was half as fast: its own times say nothing, those against the reference do.
    times = {0: [[1.0], [1.0]], 1: [[1.2], [1.3]], 2: [[2.2], [2.4]], 3: [[2.0], [2.0]]}
    found = Pairing(HEATS, blocks(times)).of(1, 2)
    assert found.joined
    assert found.logs.tolist() == pytest.approx([math.log(1.2 / 1.1), math.log(1.3 / 1.2)])


@pytest.mark.parametrize(("pair", "ratio"), [((2, 0), 1.1), ((0, 2), 1 / 1.1), ((1, 0), 1.2)])
def test_the_reference_is_met_in_ones_own_heat(pair: tuple[int, int], ratio: float) -> None:
    found = Pairing(HEATS, blocks({0: [[1.0]], 1: [[1.2]], 2: [[2.2]], 3: [[2.0]]})).of(*pair)
    assert not found.joined
    assert math.exp(found.logs[0]) == pytest.approx(ratio)


def test_without_the_references_copy_nothing_is_made_up() -> None:
    pairing = Pairing(HEATS, blocks({0: [[1.0]], 1: [[1.2]], 2: [[2.2]]}))
    assert len(pairing.of(2, 0).logs) == 0
    assert len(pairing.of(1, 2).logs) == 0


def test_a_launch_that_one_heat_lacks_is_left_out() -> None:
    times = {0: [[1.0], [1.0]], 1: [[1.2], [1.3]], 2: [[2.2]], 3: [[2.0]]}
    assert Pairing(HEATS, blocks(times)).of(1, 2).logs.index.tolist() == [0]


def test_one_disturbed_round_hardly_moves_a_launch() -> None:
    steady, spiky = [[1.0] * 5], [[1.1, 1.1, 30.0, 1.1, 1.1]]
    found = Pairing(HEATS, blocks({0: steady, 1: spiky})).of(1, 0)
    assert math.exp(found.logs[0]) == pytest.approx(1.1)


def test_a_study_in_two_heats_shows_the_join(study_folder: Make) -> None:
    plants = [
        Plant(DDP, 0.05, launch_sd=1e-4),
        Plant(HOROVOD, 0.06, launch_sd=1e-4),
        Plant(OTHER, 0.11, launch_sd=1e-4, heat=1),
        Plant(make_case("ddp", "mpi", 2), 0.12, launch_sd=1e-4, heat=1),
        Plant(DDP, 0.1, name="ddp-gloo (heat 2)", launch_sd=1e-4, copy=2, heat=1),
    ]
    found = summary.reduce(
        table.read(study_folder(plants, reference={"engine": "ddp", "transport": "gloo"}, launches=6))
    )
    assert [row.index for row in found.rows] == [0, 1, 2, 3]
    assert [round(c.ratio.value, 2) for c in found.comparisons] == [1.2, 1.1, 1.2]
    assert found.controls == []
    best = next(question for question in found.questions if question.question == "best")
    assert best.comparison.marks == ()
    assert best.comparison.a == 2
