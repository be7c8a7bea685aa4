"""The live line: how long the rest of a stage takes."""

from __future__ import annotations

from benches.watch import TimeLeft


def test_nothing_is_said_before_the_first_end() -> None:
    left = TimeLeft()
    left.begin(0, 6, now=100.0)
    assert left.text(130.0) == ""


def test_launches_that_end_at_once_count_by_the_time_of_their_heat() -> None:
    left = TimeLeft()
    left.begin(0, 6, now=100.0)
    for moment in (140.0, 140.001, 140.002):
        left.end(moment)
    assert left.text(140.002) == "0:00:40 left"
    left.begin(3, 6, now=140.1)
    assert left.text(155.0) == "0:00:25 left"
    assert left.text(500.0) == "0:00:00 left"


def test_a_new_stage_starts_its_own_clock() -> None:
    left = TimeLeft()
    left.begin(0, 2, now=0.0)
    left.end(100.0)
    left.begin(0, 2, now=200.0)
    assert left.text(205.0) == ""
    left.end(210.0)
    assert left.text(210.0) == "0:00:10 left"
