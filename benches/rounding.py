"""What rounding allows the reduction of a step: the reference, and how far a sound engine may be from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benches.spec import Case

LOW_RANK_BOUND = 1e-3
"""Allowed to PowerSGD's products in fp32: 50 × what √k roundings come to for k = 10⁵, a tenth of one rank × 1.01."""
SHARED_FACTORS = 4 * 2.0**-24
"""Rounding, in fp32 at least, of the factors that gradients are multiplied by: 1/n, or two with a second factor."""
SHARED_MANTISSAS = 1 / 16
"""Of u: with 2⁷ mantissas in bf16 the mean error of a product with 1/n is no longer 0 but up to 0.05 u (n ≤ 32)."""
PIECE = 2**17
"""Elements that are judged at a time: float64 copies of whole tensors leave the caches, and take twice as long."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of this type (2**-24 in fp32)."""
    return torch.finfo(dtype).eps / 2


def gamma(operations: int, dtype: torch.dtype) -> float:
    """Higham's constant ku/(1-ku): the relative error of k roundings (Accuracy and Stability, 2nd ed., lemma 3.1)."""
    ku = operations * unit_roundoff(dtype)
    return ku / (1 - ku) if ku < 1 else sys.float_info.max


@dataclass(frozen=True)
class Wire:
    """What the case lets gradients suffer on their way, and the gate therefore must allow."""

    lossy: str | None = None
    """fp16, bf16: the format in which they travel; powersgd; None: their own format."""
    predivide: float = 1.0
    """Factor by which they are divided before the sum and multiplied after it."""

    @classmethod
    def of(cls, case: Case) -> Wire:
        return cls(case.lossy, case.horovod.gradient_predivide_factor if case.horovod is not None else 1.0)

    def dtype(self, gradient: torch.Tensor) -> torch.dtype:
        """Format in which this gradient travels."""
        return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(str(self.lossy), gradient.dtype)

    def roundings(self, ranks: int) -> int:
        """Of one element: a sum of n terms, and a cast or the division with its rounded factor; two more for a second
        factor."""
        return ranks + (1 if self.predivide == 1 else 3)

    def underflow(self, gradient: torch.Tensor, ranks: int) -> float:
        """Most that an element loses below the normal numbers, where rounding is absolute."""
        kind = torch.finfo(self.dtype(gradient))
        return ranks * max(1.0, self.predivide) * kind.smallest_normal * kind.eps

    def pieces(
        self, delivered: torch.Tensor, terms: list[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
        """One flat tensor and each rank's, some elements at a time; whole where its norm is what is judged."""
        size = max(1, delivered.numel()) if self.lossy == "powersgd" else PIECE
        for piece, *same in zip(*(torch.split(one, size) for one in (delivered, *terms)), strict=True):
            yield piece, same

    def fits(self, gradient: torch.Tensor, ranks: int) -> bool:
        """Whether a sum of such gradients stays finite on its way."""
        return bool((gradient * ranks).to(self.dtype(gradient)).isfinite().all())


@dataclass(frozen=True)
class Mean:
    """Float64 mean of the ranks' gradients of one tensor, and the mean of their magnitudes, of the same shape."""

    ranks: int
    value: torch.Tensor
    magnitude: torch.Tensor

    @classmethod
    def of(cls, gradients: list[torch.Tensor]) -> Mean:
        value = gradients[0].to(torch.float64, copy=True)
        magnitude = value.abs()
        for gradient in gradients[1:]:
            term = gradient.to(torch.float64, copy=True)
            value = value.add_(term)
            magnitude = magnitude.add_(term.abs_())
        return cls(len(gradients), value.div_(len(gradients)), magnitude.div_(len(gradients)))


def reduction_error(delivered: torch.Tensor, mean: Mean, wire: Wire = Wire()) -> tuple[float, float]:
    """Largest |delivered - mean| in units of the mean magnitude sum|g_i|/n, and its bound γ(n+1).

    The bound is that of a sum of n terms and one division, relative to the magnitudes summed and not to the result,
    which may cancel; γ is of the format in which gradients travel. PowerSGD has no such bound: there it is
    ‖delivered - mean‖ ÷ ‖mean‖, at most 1 for the orthogonal projection that it makes.
    """
    if wire.lossy == "powersgd":
        return distance(delivered.double(), mean.value), 1 + LOW_RANK_BOUND
    # A division before the sum may fall below the normal numbers, where rounding is absolute.
    underflow = wire.underflow(delivered, mean.ranks)
    excess = (delivered.double().sub_(mean.value)).abs_().sub_(underflow).clamp_(min=0)
    # Where nothing was summed, 0 / 0 is no error; anything else stays infinite.
    relative = (excess / mean.magnitude).masked_fill_((excess == 0) & (mean.magnitude == 0), 0)
    bound = gamma(wire.roundings(mean.ranks), wire.dtype(delivered))
    return float(relative.max()) if relative.numel() else 0.0, bound


@dataclass
class Projection:
    """⟨delivered, mean⟩ ÷ ⟨mean, mean⟩ over all tensors: sees one rank's gradient scaled where rounding hides it.

    Roundings are independent and uniform in ±u, so their effect on the projection has a standard deviation of at most
    u/√3·√(n+1)·√Σ(mean·magnitude)² ÷ Σmean², and of underflow·‖mean‖ ÷ Σmean² below the normal numbers; the bound is
    six of each (Higham, section 2.8, statistical estimates), and what all elements share, however many they are (see
    SHARED_FACTORS, SHARED_MANTISSAS). PowerSGD delivers PPᵀ·mean with orthonormal columns P, so that there
    ⟨delivered, mean⟩ ÷ ⟨delivered, delivered⟩ is 1, but for the rounding of matrix products.
    """

    wire: Wire = Wire()
    inner: float = 0.0
    square: float = 0.0
    variance: float = 0.0
    shared: float = SHARED_FACTORS

    def add(self, delivered: torch.Tensor, mean: Mean) -> None:
        """Take in one tensor."""
        value, found = mean.value.view(-1), delivered.double().view(-1)
        self.inner += float(found.dot(value))
        if self.wire.lossy == "powersgd":
            self.square += float(found.dot(found))
            return
        square = float(value.dot(value))
        self.square += square
        weight = value * mean.magnitude.view(-1)
        u = unit_roundoff(self.wire.dtype(delivered))
        self.variance += self.wire.roundings(mean.ranks) * u**2 / 3 * float(weight.dot(weight))
        self.variance += self.wire.underflow(delivered, mean.ranks) ** 2 * square
        self.shared = max(self.shared, SHARED_MANTISSAS * u)

    @property
    def sums(self) -> tuple[float, float, float, float]:
        """What `joined` takes of each rank."""
        return self.inner, self.square, self.variance, self.shared

    def joined(self, sums: list[tuple[float, float, float, float]]) -> Projection:
        """That of all elements, from those of the ranks' shares."""
        inner, square, variance, shared = zip(*sums, strict=True)
        return Projection(self.wire, sum(inner), sum(square), sum(variance), max(shared))

    def result(self) -> tuple[float, float]:
        """|projection - 1| and its bound."""
        if self.square == 0:
            return 0.0, 0.0
        rounding = 6 * self.variance**0.5 / self.square + self.shared
        return abs(self.inner / self.square - 1), LOW_RANK_BOUND if self.wire.lossy == "powersgd" else rounding


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """‖one - other‖ ÷ ‖other‖, zero where both agree bit for bit (NaN included)."""
    if torch.equal(as_bytes(one), as_bytes(other)):
        return 0.0
    size = float(other.double().norm())
    return float((one.double() - other.double()).norm()) / (size or 1.0)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, flat: as a number, NaN is not equal to itself."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
