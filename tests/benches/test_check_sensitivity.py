"""The sensitivity check: the slow-down that is planted, and how tries are counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from analysis.estimate import Estimate
from benches.checks import duels, sensitivity
from benches.checks.sensitivity import TARGETS, Job, Try
from benches.checks.slowed import slow_down, slowed
from benches.workloads.train import bare_model

FIVE = Job("mlp", TARGETS[0], 30)


RESNET = Job("resnet18_64", TARGETS[0], 30)
SLOWER, NOT_FOUND = ("slower", 100.0), ("inconclusive", 180.0)


def tries(*found: tuple[str, float], job: Job = FIVE, first: tuple[float, ...] = ()) -> list[Try]:
    return [Try(job, verdict, took_s, 6, np.log(first)) for verdict, took_s in found]


def test_a_slowed_model_computes_what_the_model_does() -> None:
    case = duels.contestant().case
    plain, slow = bare_model(case, torch.device("cpu")), bare_model(slow_down(case, 3), torch.device("cpu"))
    x = torch.ones(2, 1, 8, 8)
    assert torch.equal(plain(x), slow(x))
    assert [p.shape for p in slow.parameters()] == [p.shape for p in plain.parameters()]
    assert not list(slow.buffers())


def test_the_products_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *args, **kwargs: calls.append(1) or multiply(*args, **kwargs))
    slowed("benches.workloads.models:mlp", {"depth": 2}, 7)(torch.ones(1, 64))
    assert len(calls) == 7


def test_products_are_chosen_by_what_the_probe_took() -> None:
    assert sensitivity.products_for(5, probe=60, ratio=1.10) == 30
    assert sensitivity.products_for(2, probe=60, ratio=1.10) == 12
    assert sensitivity.products_for(0.001, probe=60, ratio=1.10) == 1


def test_contestants_differ_in_products_alone() -> None:
    plain, slow = sensitivity.contestants("mlp", [0, 30])
    assert plain.case.model.kwargs["products"] == 0
    assert slow_down(duels.contestant(block_steps=50).case, 30).id == slow.case.id


def ratio(value: float, half: float = 0.01) -> Estimate:
    return Estimate(value, value - half, value + half, 0.95, 6, "ratio")


@pytest.mark.parametrize(("value", "holds"), [(1.040, True), (1.047, True), (1.048, False)])
def test_a_probe_that_may_be_more_than_was_planned_is_no_fair_try(value: float, holds: bool) -> None:
    assert sensitivity.probed(FIVE, ratio(value)).holds is holds


@pytest.mark.parametrize(("value", "holds"), [(1.040, True), (1.059, True), (1.061, False)])
def test_tries_that_are_shown_to_be_more_than_was_planned_fail(value: float, holds: bool) -> None:
    found = sensitivity.planted(FIVE, tries(*[SLOWER] * 20, first=(value - 0.01, value, value + 0.01)))
    assert (found.n, found.value) == (60, f"{value:.4f}")
    assert found.holds is holds


@pytest.mark.parametrize("done", [[], tries(NOT_FOUND)])
def test_tries_without_a_launch_show_nothing(done: list[Try]) -> None:
    assert sensitivity.planted(FIVE, done).holds is False


def test_only_launches_before_the_first_look_tell_what_was_planted() -> None:
    times = np.ones((3, 10, 4))
    times[1] = 1.05
    times[1, 6:] = 1.2
    times[0, 2, 3] = times[2, 0, 0] = np.nan
    assert np.exp(sensitivity.before_looks(times)) == pytest.approx([1.05] * 5)


def test_the_probe_knows_a_small_slow_down_closely() -> None:
    found = sensitivity.of_probe(ratio(1.5, 0.02), 20 / 200)
    assert (found.low, found.value, found.high, found.n) == (pytest.approx(1.048), 1.05, pytest.approx(1.052), 6)


@pytest.mark.parametrize(("half", "holds"), [(1.25, True), (1.272, True), (1.28, False), (1.22, False)])
def test_products_must_add_up(half: float, holds: bool) -> None:
    assert sensitivity.additive("mlp", ratio(half), ratio(1.5)).holds is holds


def test_a_slow_down_is_found_by_the_right_word_in_time() -> None:
    found = tries(("slower", 100), ("slower", 180), ("slower", 181), ("faster", 50), ("inconclusive", 100))
    assert [one.found for one in found] == [True, True, False, False, False]


def test_the_bar_is_a_share_of_the_tries_that_were_asked_for() -> None:
    assert sensitivity.line(FIVE, tries(*[SLOWER] * 18, *[NOT_FOUND] * 2)).holds
    assert sensitivity.line(FIVE, tries(*[SLOWER] * 17, *[NOT_FOUND] * 3)).holds is False
    short = sensitivity.line(FIVE, tries(*[SLOWER] * 3))
    assert (short.n, short.value, short.holds, short.bar) == (3, "3 of 3", False, "at least 18 of 20")
    assert sensitivity.line(FIVE, tries(*[SLOWER] * 3), asked=3).holds
    assert sensitivity.line(FIVE, []).holds is False


@pytest.mark.parametrize(("n", "holds"), [(0, False), (4, False), (5, True)])
def test_other_models_need_their_tries_whatever_they_find(n: int, holds: bool) -> None:
    found = sensitivity.line(RESNET, tries(*[NOT_FOUND] * n, job=RESNET))
    assert (found.bar, found.holds) == ("5 tries", holds)


def test_who_has_a_bar_goes_first_until_it_is_settled() -> None:
    two = Job("mlp", TARGETS[1], 12)
    jobs = [RESNET, FIVE, two]
    assert sensitivity.turn_of(jobs, [], None) == FIVE
    assert sensitivity.turn_of(jobs, tries(SLOWER), None) == two
    won, lost = tries(*[SLOWER] * 18), tries(*[NOT_FOUND] * 7, job=two)
    assert sensitivity.turn_of(jobs, [*won[1:], *lost], None) == FIVE
    assert sensitivity.turn_of(jobs, [*won, *lost[1:]], None) == two
    assert sensitivity.turn_of(jobs, [*won, *lost], None) == RESNET
    shown = tries(*[SLOWER] * 5, job=RESNET)
    assert sensitivity.turn_of(jobs, [*won, *lost, *shown], None) == two
    rest = [*tries(*[SLOWER] * 2), *tries(*[SLOWER] * 13, job=two)]
    assert sensitivity.turn_of(jobs, [*won, *lost, *shown, *rest], None) is None


def test_a_part_of_the_table_can_be_asked_for() -> None:
    assert [target.percent for target in sensitivity.parse([]).targets] == [5, 2]
    assert [target.percent for target in sensitivity.parse(["--percents", "2"]).targets] == [2]
    with pytest.raises(SystemExit):
        sensitivity.parse(["--percents", "3"])
