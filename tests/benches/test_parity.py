"""The gate's mathematics: sound reductions pass, planted faults are seen, for each dtype and number of ranks."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benches import parity
from benches.header import ParityCheck
from benches.parity import Worst, exchange_all, gather_all
from benches.rounding import Mean, Projection, distance, gamma
from benches.rounding import reduction_error as error_of_mean

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def gradients_of(ranks: int, size: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(size, generator=generator)
    return [(common + torch.randn(size, generator=generator)).to(dtype) for _ in range(ranks)]


def ring_mean(gradients: list[torch.Tensor], divide_first: bool, order: list[int]) -> torch.Tensor:
    """The mean as engines make it: in the gradients' own dtype, in some order, divided before or after."""
    n = len(gradients)
    terms = [gradients[i] / n if divide_first else gradients[i] for i in order]
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    return total if divide_first else total / n


def reduction_error(delivered: torch.Tensor, gradients: list[torch.Tensor]) -> tuple[float, float]:
    return error_of_mean(delivered, Mean.of(gradients))


def projection(delivered: torch.Tensor, gradients: list[torch.Tensor]) -> tuple[float, float]:
    found = Projection()
    found.add(delivered, Mean.of(gradients))
    return found.result()


class Ranks:
    """As much of an engine as the travelling gradients use: `ranks` threads that meet."""

    def __init__(self, rank: int, met: threading.Barrier, table: dict[int, torch.Tensor]) -> None:
        self.rank, self.world_size, self.met, self.table = rank, met.parties, met, table

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.table[self.rank] = tensor
        self.met.wait()
        found = [self.table[rank] for rank in range(self.world_size)]
        self.met.wait()
        return found

    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([theirs[self.rank] for theirs in self.gather(rows)])


@settings(deadline=None, max_examples=50)
@given(ranks=st.integers(1, 5), sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), chunk=st.integers(1, 400))
def test_gradients_travel_whole_or_each_element_once(ranks: int, sizes: list[int], chunk: int) -> None:
    tensors = [{str(i): torch.randn(size) for i, size in enumerate(sizes)} for _ in range(ranks)]
    met, table = threading.Barrier(ranks, timeout=30), dict[int, torch.Tensor]()

    def travel(rank: int) -> tuple[list[Any], list[Any]]:
        engine = Ranks(rank, met, table)
        return list(gather_all(engine, tensors[rank])), list(exchange_all(engine, tensors[rank]))  # type: ignore[arg-type]

    with mock.patch("benches.parity.CHUNK_BYTES", chunk), ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(travel, range(ranks)))
    seen = {name: torch.zeros_like(tensor) for name, tensor in tensors[0].items()}
    for whole, share in found:
        assert [name for name, _, _ in whole] == list(tensors[0])
        for name, place, terms in [*whole, *share]:
            assert all(torch.equal(term, theirs[name][place]) for term, theirs in zip(terms, tensors, strict=True))
        assert all(len(terms[0]) == len(tensors[0][name]) for name, _, terms in whole)
        for name, place, _ in share:
            seen[name][place] += 1
    assert all((times == 1).all() for times in seen.values())


@settings(deadline=None, max_examples=50)
@given(cuts=st.lists(st.integers(0, 300), max_size=4), seed=st.integers(0, 2**31))
def test_the_projection_of_shares_is_that_of_the_whole(cuts: list[int], seed: int) -> None:
    gradients = gradients_of(3, 300, torch.float32, seed)
    delivered = 1.01 * ring_mean(gradients, True, [0, 1, 2])
    edges = [0, *sorted(cuts), 300]
    sums = []
    for first, last in pairwise(edges):
        part = Projection()
        part.add(delivered[first:last], Mean.of([one[first:last] for one in gradients]))
        sums.append(part.sums)
    assert Projection().joined(sums).result() == pytest.approx(projection(delivered, gradients), rel=1e-9)


@settings(deadline=None, max_examples=200)
@given(
    ranks=st.integers(1, 16),
    dtype=st.sampled_from(sorted(DTYPES)),
    divide_first=st.booleans(),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_sound_reductions_pass(ranks: int, dtype: str, divide_first: bool, seed: int, data: st.DataObject) -> None:
    gradients = gradients_of(ranks, 500, DTYPES[dtype], seed)
    delivered = ring_mean(gradients, divide_first, data.draw(st.permutations(range(ranks))))
    error, bound = reduction_error(delivered, gradients)
    assert error <= bound
    error, bound = projection(delivered, gradients)
    assert error <= bound


@pytest.mark.parametrize("ranks", [3, 5, 7])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_rounded_factor_that_all_elements_share_is_no_fault(ranks: int, dtype: str) -> None:
    """DDP multiplies by 1/n: in a large model its rounding outweighs those of the elements, which cancel."""
    gradients = gradients_of(ranks, 2_000_000, DTYPES[dtype])
    scaled = [gradient * (1 / ranks) for gradient in gradients]
    error, bound = projection(sum(scaled[1:], scaled[0]), gradients)
    assert error <= bound


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fault", ["one rank x 1.01", "summed", "a rank left out", "scaled by the world size"])
def test_planted_faults_are_seen(ranks: int, dtype: str, fault: str) -> None:
    gradients = gradients_of(ranks, 100_000, DTYPES[dtype])
    order = list(range(ranks))
    faulty = {
        "one rank x 1.01": lambda: ring_mean([*gradients[:-1], gradients[-1] * 1.01], True, order),
        "summed": lambda: ring_mean(gradients, True, order) * ranks,
        "a rank left out": lambda: ring_mean([*gradients[:-1], gradients[-1] * 0], True, order),
        "scaled by the world size": lambda: ring_mean(gradients, True, order) / ranks,
    }[fault]()
    elementwise, in_total = reduction_error(faulty, gradients), projection(faulty, gradients)
    assert elementwise[0] > elementwise[1] or in_total[0] > in_total[1]


def test_cancellation_is_no_error() -> None:
    one = torch.tensor([1.0, 1e-8])
    error, bound = reduction_error(torch.tensor([2e-8, 0.0]), [one, -one + torch.tensor([0.0, 1e-15])])
    assert error <= bound


def test_nan_fails() -> None:
    gradients = gradients_of(2, 4, torch.float32)
    worst = Worst("reduction")
    worst.see(*reduction_error(torch.full((4,), torch.nan), gradients), "weight")
    worst.see(0.0, 1.0, "bias")
    assert not worst.passed
    assert worst.where == "weight"


def test_a_verdict_of_nan_can_be_written_and_read_again() -> None:
    nan = {"name": "projection", "passed": False, "error": math.nan, "bound": math.nan, "where": "rank 0"}
    sound = {"name": "projection", "passed": True, "error": 0.0, "bound": 1.0, "where": ""}
    found = parity._merge((sound, nan))
    assert not found.passed
    assert msgspec.json.decode(msgspec.json.encode(found), type=ParityCheck) == found


def test_equal_bits_are_equal_though_they_are_nan() -> None:
    tensor = torch.tensor([1.0, torch.nan])
    assert distance(tensor, tensor.clone()) == 0.0
    assert distance(torch.tensor([0.0]), torch.tensor([-0.0])) == 0.0
    assert not distance(tensor, torch.tensor([2.0, torch.nan])) <= 1e9


def test_a_part_called_module_is_no_wrapper() -> None:
    model = nn.Sequential()
    model.module = nn.Linear(2, 2)
    assert parity._bare(model) is model


def test_gradient_that_should_be_zero() -> None:
    zeros = [torch.zeros(3), torch.zeros(3)]
    error, bound = reduction_error(torch.tensor([0.0, 1e-20, 0.0]), zeros)
    assert error > bound


def test_gamma_is_highams() -> None:
    u = 2.0**-24
    assert gamma(3, torch.float32) == pytest.approx(3 * u / (1 - 3 * u), rel=1e-12)
