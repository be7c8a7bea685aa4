"""The gate's mathematics where gradients travel lossily: what the setting implies passes, planted faults do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benches.parity import Worst
from benches.rounding import Mean, Projection, Wire, reduction_error

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
FAULTS: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]] = {
    "summed": lambda gradients: [g * len(gradients) for g in gradients],
    "a rank left out": lambda gradients: [*gradients[:-1], gradients[-1] * 0],
    "scaled by the world size": lambda gradients: [g / len(gradients) for g in gradients],
}


def gradients_of(ranks: int, *shape: int, scale: float = 1.0, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(shape, generator=generator)
    return [scale * (common + torch.randn(shape, generator=generator)) for _ in range(ranks)]


def as_ddp(gradients: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """As torch's hooks do: cast, divide, sum."""
    terms = [gradient.to(dtype).div_(len(gradients)) for gradient in gradients]
    return total(terms).float()


def as_horovod(gradients: list[torch.Tensor], dtype: torch.dtype, factor: float = 1.0) -> torch.Tensor:
    """As Horovod does: cast, divide by the factor, sum, scale."""
    terms = [(gradient.to(dtype).float() * (1 / factor)).to(dtype) for gradient in gradients]
    return (total(terms).float() * (factor / len(gradients))).to(dtype).float()


def total(terms: list[torch.Tensor]) -> torch.Tensor:
    result = terms[0].clone()
    for term in terms[1:]:
        result += term
    return result


def as_powersgd(gradients: list[torch.Tensor], rank: int = 2) -> torch.Tensor:
    """As PowerSGD's first compressed step does: PPᵀ times the mean, P an orthonormal basis of the mean's sketch."""
    mean = total(gradients) / len(gradients)
    sketch = torch.randn(mean.shape[1], rank, generator=torch.Generator().manual_seed(1))
    basis, _ = torch.linalg.qr(mean @ sketch)
    return basis @ (mean.T @ basis).T


def passes(delivered: torch.Tensor, gradients: list[torch.Tensor], wire: Wire) -> bool:
    mean, projection, worst = Mean.of(gradients), Projection(wire), Worst("gate")
    worst.see(*reduction_error(delivered, mean, wire), "weight")
    projection.add(delivered, mean)
    worst.see(*projection.result(), "all")
    return worst.passed


@settings(deadline=None, max_examples=200)
@given(
    ranks=st.integers(1, 16),
    half=st.sampled_from(sorted(HALVES)),
    exponent=st.integers(-20, 8),
    seed=st.integers(0, 2**31),
    factor=st.sampled_from([1.0, 3.0, 7.0, 16.0]),
)
def test_rounding_that_the_setting_implies_passes(
    ranks: int, half: str, exponent: int, seed: int, factor: float
) -> None:
    gradients = gradients_of(ranks, 500, scale=2.0**exponent, seed=seed)
    assert passes(as_ddp(gradients, HALVES[half]), gradients, Wire(half))
    assert passes(as_horovod(gradients, HALVES[half], factor), gradients, Wire(half, factor))


@settings(deadline=None, max_examples=100)
@given(ranks=st.integers(1, 16), factor=st.floats(0.1, 100), seed=st.integers(0, 2**31))
def test_a_second_factor_passes_in_fp32(ranks: int, factor: float, seed: int) -> None:
    gradients = gradients_of(ranks, 500, seed=seed)
    assert passes(as_horovod(gradients, torch.float32, factor), gradients, Wire(None, factor))


@settings(deadline=None, max_examples=50)
@given(ranks=st.integers(1, 8), rows=st.integers(1, 60), columns=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_low_rank_products_pass(ranks: int, rows: int, columns: int, seed: int) -> None:
    gradients = gradients_of(ranks, rows, columns, seed=seed)
    assert passes(as_powersgd(gradients, min(2, rows, columns)), gradients, Wire("powersgd"))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("half", sorted(HALVES))
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_lossy_fault_is_seen(fault: str, half: str, ranks: int) -> None:
    gradients = gradients_of(ranks, 10_000)
    assert not passes(as_ddp(FAULTS[fault](gradients), HALVES[half]), gradients, Wire(half))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("half", sorted(HALVES))
def test_a_lossy_rank_scaled_by_one_percent_is_seen(half: str, ranks: int) -> None:
    gradients = gradients_of(ranks, 100_000)
    faulty = [*gradients[:-1], gradients[-1] * 1.01]
    assert not passes(as_ddp(faulty, HALVES[half]), gradients, Wire(half))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("fault", [*sorted(FAULTS), "one rank x 1.01"])
def test_a_fault_under_powersgd_is_seen(fault: str, ranks: int) -> None:
    gradients = gradients_of(ranks, 80, 50)
    one_percent = [*gradients[:-1], gradients[-1] * 1.01]
    faulty = FAULTS[fault](gradients) if fault in FAULTS else one_percent
    assert not passes(as_powersgd(faulty), gradients, Wire("powersgd"))


def test_lossless_gradients_are_held_to_their_own_format() -> None:
    gradients = gradients_of(2, 1000)
    assert not passes(as_ddp(gradients, torch.float16), gradients, Wire())


def test_a_sum_that_overflows_on_its_way_does_not_fit() -> None:
    gradient = torch.tensor([40_000.0, -1.0])
    assert Wire("fp16").fits(gradient, 1)
    assert not Wire("fp16").fits(gradient, 2)
    assert Wire("bf16").fits(gradient, 2)
