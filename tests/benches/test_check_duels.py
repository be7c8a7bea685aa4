"""What the checks of the duel share: tables, shares and exit statuses."""

from __future__ import annotations

import numpy as np
import pytest

from benches.checks import duels
from benches.checks.duels import Line
from benches.schedule import CONTROL_COPY


def test_a_table_is_aligned_and_says_what_fails() -> None:
    lines = duels.show([Line("a", 3, "1.00", "0.99 … 1.01", "at most 1.1", True), Line("longer", 12, "2", holds=False)])
    assert lines == [
        "what    n   found  95 % interval  bar          verdict",
        "a       3   1.00   0.99 … 1.01    at most 1.1  holds",
        "longer  12  2                                  FAILS",
    ]


def test_the_interval_of_a_share_is_exact() -> None:
    # The rule of three, exactly: 1 − 0.025^(1/20).
    assert duels.share(0, 20) == f"0.0 … {(1 - 0.025 ** (1 / 20)) * 100:.1f} %"
    assert duels.share(18, 20) == "68.3 … 98.8 %"
    assert duels.share(0, 0) == ""


@pytest.mark.parametrize(
    ("line", "full", "quick"),
    [
        (Line("a", 5, "", holds=True), 0, 0),
        (Line("a", 5, "", holds=None), 0, 0),
        (Line("a", 5, "", holds=False), 1, 0),
        (Line("a", 0, "", holds=False), 1, 1),
    ],
)
def test_a_try_judges_nothing_but_must_find_something(line: Line, full: int, quick: int) -> None:
    good = Line("b", 1, "", holds=True)
    assert duels.status([good, line], quick=False) == full
    assert duels.status([good, line], quick=True) == quick


def test_copies_are_equal_have_folders_of_their_own_and_hold_no_control() -> None:
    one = duels.contestant()
    found = duels.copies(one, 4)
    assert {copy.case.id for copy in found} == {one.case.id}
    assert len({copy.key for copy in found}) == len({copy.name for copy in found}) == 4
    assert CONTROL_COPY not in {copy.copy for copy in found}
    assert len(duels.make_study("s", found, launches=3).contestants) == 4


def test_only_launches_that_are_whole_count() -> None:
    times = np.ones((2, 3, 4))
    times[1, 2, 0] = np.nan
    assert duels.complete(times).shape == (2, 2, 4)
