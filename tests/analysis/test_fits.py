"""The laws of scaling and the α–β model: they find what was planted, within their intervals, and refuse too little."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import alphabeta, laws

SIZES = np.array([1, 2, 4, 8, 16, 32], dtype=float)
BYTES = 2.0 ** np.arange(10, 28)
rates = st.floats(1e-2, 1e6)
sigmas = st.floats(0.0, 0.5)
kappas = st.floats(0.0, 0.02)


@given(rates, sigmas, kappas)
@settings(max_examples=40, deadline=None)
def test_the_usl_is_recovered_from_points_on_it(rate: float, sigma: float, kappa: float) -> None:
    found = laws.fit("usl", SIZES, laws.throughput(SIZES, rate, sigma, kappa))
    assert found.parameters["rate"].value == pytest.approx(rate, rel=1e-3)
    assert found.parameters["sigma"].value == pytest.approx(sigma, abs=1e-3)
    assert found.parameters["kappa"].value == pytest.approx(kappa, abs=1e-4)
    assert found.error < 1e-3


@given(rates, st.floats(0.001, 0.5), st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_other_units_of_throughput_change_the_rate_alone(rate: float, sigma: float, c: float) -> None:
    noise = np.exp(0.02 * np.sin(np.arange(len(SIZES))))
    one = laws.fit("amdahl", SIZES, laws.throughput(SIZES, rate, sigma) * noise)
    other = laws.fit("amdahl", SIZES, laws.throughput(SIZES, rate, sigma) * noise * c)
    assert other.parameters["rate"].value == pytest.approx(one.parameters["rate"].value * c, rel=1e-4)
    assert other.parameters["sigma"].value == pytest.approx(one.parameters["sigma"].value, abs=1e-5)
    assert other.r2 == pytest.approx(one.r2, abs=1e-5)


@pytest.mark.parametrize(("law", "count"), [("amdahl", 2), ("usl", 3)])
def test_too_few_world_sizes_are_refused(law: laws.Law, count: int) -> None:
    found = laws.fit(law, SIZES[:count], laws.throughput(SIZES[:count], 100, 0.05))
    assert found.refused == f"{count} world sizes; {count + 1} are the least for {count} unknowns"
    assert not found.parameters
    assert not laws.fit(law, SIZES[: count + 1], laws.throughput(SIZES[: count + 1], 100, 0.05)).refused


def test_the_intervals_hold_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        noisy = laws.throughput(SIZES, 100, 0.1) * np.exp(random.normal(0, 0.02, len(SIZES)))
        sigma = laws.fit("amdahl", SIZES, noisy).parameters["sigma"]
        hits += sigma.low <= 0.1 <= sigma.high
    assert 0.90 <= hits / 300 <= 0.99


def test_the_peak_is_where_throughput_is_highest() -> None:
    found = laws.fit("usl", SIZES, laws.throughput(SIZES, 100, 0.05, 0.002))
    assert found.peak == pytest.approx(math.sqrt(0.95 / 0.002), rel=0.01)
    assert found.at(4) == pytest.approx(laws.throughput(np.array([4.0]), 100, 0.05, 0.002)[0], rel=1e-3)


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-8))
@settings(max_examples=30, deadline=None)
def test_alpha_and_beta_are_recovered(alpha: float, beta: float) -> None:
    times = alpha + beta * BYTES
    (piece,) = alphabeta.fit(BYTES, times)
    assert [piece.time_s(size) for size in BYTES] == pytest.approx(list(times), rel=1e-6)
    assert (piece.from_bytes, piece.to_bytes) == (BYTES[0], BYTES[-1])


@given(st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_times_in_another_unit_scale_alpha_and_beta(c: float) -> None:
    times = (2e-5 + 1e-9 * BYTES) * np.exp(0.03 * np.cos(np.arange(len(BYTES))))
    one, other = alphabeta.fit(BYTES, times), alphabeta.fit(BYTES, times * c)
    for a, b in zip(one, other, strict=True):
        assert b.alpha_s.value == pytest.approx(a.alpha_s.value * c, rel=1e-6)
        assert b.beta_s_per_byte.value == pytest.approx(a.beta_s_per_byte.value * c, rel=1e-6)


def test_a_change_of_protocol_is_found_where_it_is() -> None:
    small = BYTES < 2**18
    noise = np.exp(np.random.default_rng(3).normal(0, 0.01, len(BYTES)))
    times = np.where(small, 1e-5 + 2e-9 * BYTES, 8e-5 + 2e-10 * BYTES) * noise
    pieces = alphabeta.fit(BYTES, times)
    assert [piece.from_bytes for piece in pieces] == [2**10, 2**18]
    assert pieces[1].beta_s_per_byte.low <= 2e-10 <= pieces[1].beta_s_per_byte.high
    assert all(one.to_bytes < other.from_bytes for one, other in itertools.pairwise(pieces))


def test_noise_alone_makes_no_second_piece() -> None:
    random = np.random.default_rng(5)
    times = 1e-5 + 1e-9 * BYTES
    counts = [len(alphabeta.fit(BYTES, times * np.exp(random.normal(0, 0.05, len(BYTES))))) for _ in range(60)]
    assert sum(count > 1 for count in counts) <= 12


def test_too_few_sizes_are_refused() -> None:
    assert alphabeta.fit(BYTES[:3], BYTES[:3] * 1e-9) == ()
