"""The gate before the clock: does this contestant compute the update that data-parallel training means?

(a) What the engine delivers is compared with the float64 mean of the ranks' unreduced gradients; (b) each rank's own
gradient is compared with what a single process computes from that rank's batch and random stream.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benches.engines.base import Engine, Trainer
from benches.record import Parity, ParityCheck
from benches.spec import Case
from benches.workloads.data import batch_for, make_batches
from benches.workloads.train import Workload, batch_numbers, compiled, optimizer_of

PARITY_STEP = 0
LOW_RANK_BOUND = 1e-3
"""Allowed to PowerSGD's products in fp32: 50 × what √k roundings come to for k = 10⁵, a tenth of one rank × 1.01."""
SHARED_FACTORS = 4 * 2.0**-24
"""Rounding, in fp32 at least, of the factors that gradients are multiplied by: 1/n, or two with a second factor."""
SHARED_MANTISSAS = 1 / 16
"""Of u: with 2⁷ mantissas in bf16 the mean error of a product with 1/n is no longer 0 but up to 0.05 u (n ≤ 32)."""
MOST_LOCAL_RANKS = 8
"""Above this many ranks, check (b) runs on a sample of them of this size, rank 0 among them."""

PIECE = 2**17
"""Elements that are judged at a time: float64 copies of whole tensors leave the caches, and take twice as long."""
CHUNK_BYTES = 2**25
"""Gradients travel to the gate in messages of about this size: each rank then holds so much of every other."""


@dataclass
class Worst:
    """The largest error of one check over all tensors of this rank, as a share of what is allowed."""

    name: str
    error: float = 0.0
    bound: float = 0.0
    where: str = ""
    passed: bool = True

    def see(self, error: float, bound: float, where: str) -> None:
        """Take in one comparison. NaN fails."""
        passed = error <= bound
        worse = not passed and (self.passed or not error <= self.error)
        if worse or (passed and self.passed and error >= self.error):
            self.error, self.bound, self.where = error, bound, where
        self.passed = self.passed and passed


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
        """One tensor of `ranks` terms, flat and some elements at a time; whole where its norm is what is judged."""
        size = max(1, delivered.numel()) if self.lossy == "powersgd" else PIECE
        for piece, *same in zip(*(torch.split(one.reshape(-1), size) for one in (delivered, *terms)), strict=True):
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
        return _distance(delivered.double(), mean.value), 1 + LOW_RANK_BOUND
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

    def result(self) -> tuple[float, float]:
        """|projection - 1| and its bound."""
        if self.square == 0:
            return 0.0, 0.0
        rounding = 6 * self.variance**0.5 / self.square + self.shared
        return abs(self.inner / self.square - 1), LOW_RANK_BOUND if self.wire.lossy == "powersgd" else rounding


def check(engine: Engine, workload: Workload, trainer: Trainer, twin: nn.Module) -> Parity:
    """Run the gate on `trainer`; `twin` is the same bare model, wrapped by nothing. Takes one optimizer step.

    Collective: every rank calls it and gets the same answer.
    """
    gate = _Gate(engine, workload, trainer, twin)
    checks = [_merge(found) for found in zip(*engine.gather_json([vars(w) for w in gate.run()]), strict=True)]
    by_name = {one.name: one for one in checks}
    reduction = by_name["reduction"]
    return Parity(passed=all(one.passed for one in checks), error=reduction.error, bound=reduction.bound, checks=checks)


class _Gate:
    def __init__(self, engine: Engine, workload: Workload, trainer: Trainer, twin: nn.Module) -> None:
        self.engine, self.workload, self.trainer, self.twin = engine, workload, trainer, twin
        self.wrapped = _bare(trainer.model)
        self.forward = compiled(workload.case, twin)
        self.wire = Wire.of(workload.case)
        self.batches = self._batches(engine.rank)
        self.start: dict[str, torch.Tensor] = {}

    def run(self) -> list[Worst]:
        rate, weights = self._learning_rate(), self._initial_weights()
        own = self._own_gradients()
        self._refuse_unused(own)
        stale = self._zero_grad()
        self._deliver()
        reduction, projection = self._reduction(own)
        buffers = self._compare(Worst("buffers"), dict(self.wrapped.named_buffers()), dict(self.twin.named_buffers()))
        local = self._local(own)
        step = self._weights_after_step()
        return [rate, weights, stale, reduction, projection, local, buffers, step, self._samples()]

    def _learning_rate(self) -> Worst:
        """The engine leaves the learning rate as the case has it."""
        worst, wanted = Worst("learning_rate"), self.workload.case.optimizer.lr
        for number, group in enumerate(self.trainer.optimizer.param_groups):
            found = float(group["lr"])
            worst.see(abs(found / wanted - 1), 0.0, f"{found:g} for {wanted:g}, group {number}")
        return worst

    def _initial_weights(self) -> Worst:
        """All ranks start from the same weights and buffers, of the bare model's types; the twin takes them over."""
        self.start = {name: tensor.detach().clone() for name, tensor in self.wrapped.state_dict().items()}
        digests = self.engine.gather_json({name: _digest(tensor) for name, tensor in self.start.items()})
        worst = Worst("initial_weights")
        for name, bare in self.twin.state_dict().items():
            different = sum(digest[name] != digests[0][name] for digest in digests)
            worst.see(float(different), 0.0, name)
            found = self.start[name].dtype
            worst.see(float(found != bare.dtype), 0.0, f"{name}, {found} for {bare.dtype}")
        return worst

    def _zero_grad(self) -> Worst:
        """Gradients of an earlier step are forgotten before the next."""
        worst = Worst("zero_grad")
        for parameter in self.wrapped.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        self.trainer.zero_grad()
        for name, parameter in self.wrapped.named_parameters():
            left = 0.0 if parameter.grad is None else float(parameter.grad.abs().max())
            worst.see(left, 0.0, f"{name}, rank {self.engine.rank}")
            parameter.grad = None
        return worst

    def _batches(self, rank: int) -> list[Any]:
        """One rank's batches, one for each pass of the step."""
        case, engine = self.workload.case, self.engine
        numbers = batch_numbers(case, PARITY_STEP)
        drawn = (batch_for(case, rank, engine.world_size, number, engine.device) for number in numbers)
        return [self.workload.arrange(batch) for batch in drawn]

    def _alone(self, rank: int) -> dict[str, torch.Tensor]:
        """The bare model's gradients, from the start, on one rank's batches and random stream."""
        self.twin.load_state_dict(self.start)
        self.twin.zero_grad()
        self.workload.seed_step(PARITY_STEP, rank)
        for batch in self.batches if rank == self.engine.rank else self._batches(rank):
            self.workload.backward(self.forward, batch)
        return {name: p.grad.clone() for name, p in self.twin.named_parameters() if p.grad is not None}

    def _own_gradients(self) -> dict[str, torch.Tensor]:
        """This rank's gradients; in fp16, at the first loss scale at which they can be summed on every rank."""
        own = self._alone(self.engine.rank)
        scaler = self.workload.scaler
        while scaler is not None and scaler.get_scale() > 1:
            fit = all(self.wire.fits(gradient, self.engine.world_size) for gradient in own.values())
            if all(self.engine.gather_json(fit)):
                break
            scaler.update(scaler.get_scale() / 2)
            own = self._alone(self.engine.rank)
        return own

    def _refuse_unused(self, own: dict[str, torch.Tensor]) -> None:
        """Say now what would otherwise hang or fail in DDP's second step."""
        settings = self.workload.case.ddp
        unused = [n for n, p in self.twin.named_parameters() if p.requires_grad and n not in own]
        anywhere = sorted({name for names in self.engine.gather_json(unused) for name in names})
        if anywhere and settings is not None and not (settings.find_unused_parameters or settings.static_graph):
            raise RuntimeError(
                f"ddp.find_unused_parameters=false: {len(anywhere)} parameters get no gradient, such as "
                f"{anywhere[0]}; set it to true, or take them out of the model"
            )

    def _deliver(self) -> None:
        for _ in range(self.trainer.rehearsals):
            self._step_without_update()
        if self.trainer.rehearsals:
            self.wrapped.load_state_dict(self.start)
        self._step_without_update()

    def _step_without_update(self) -> None:
        self.trainer.zero_grad()
        self.workload.seed_step(PARITY_STEP, self.engine.rank)
        self.workload.passes(self.trainer, self.batches)
        self.trainer.synchronize()

    def _reduction(self, own: dict[str, torch.Tensor]) -> tuple[Worst, Worst]:
        worst, projection = Worst("reduction"), Projection(self.wire)
        trained = {name: p for name, p in self.wrapped.named_parameters() if p.requires_grad}
        ours = {name: own.get(name, torch.zeros_like(parameter)) for name, parameter in trained.items()}
        for name, gathered in gather_all(self.engine, ours):
            gradient = trained[name].grad
            delivered = torch.zeros_like(ours[name]) if gradient is None else gradient
            for piece, terms in self.wire.pieces(delivered, gathered):
                mean = Mean.of(terms)
                worst.see(*reduction_error(piece, mean, self.wire), f"{name}, rank {self.engine.rank}")
                projection.add(piece, mean)
        seen = Worst("projection")
        seen.see(*projection.result(), f"rank {self.engine.rank}")
        return worst, seen

    def _local(self, own: dict[str, torch.Tensor]) -> Worst:
        """Rank 0 computes the other sampled ranks' gradients by itself, as it did its own; allowed is its own
        run-to-run difference."""
        worst = Worst("local")
        claimed = self.engine.gather_json({name: _digest(gradient) for name, gradient in own.items()})
        for rank in sample_ranks(self.engine.world_size)[1:]:
            again = self._alone(rank) if self.engine.rank == 0 else {}
            differ = [name for name, gradient in again.items() if _digest(gradient) != claimed[rank].get(name)]
            differ = self.engine.gather_json(differ)[0]
            noise = self._alone(rank) if differ and self.engine.rank == 0 else {}
            for name in differ:
                theirs = self.engine.gather(own.get(name, torch.zeros_like(self.twin.get_parameter(name))))[rank]
                if self.engine.rank == 0:
                    allowed = _distance(noise[name], again[name])
                    worst.see(_distance(theirs, again[name]), allowed, f"{name}, rank {rank}")
        return worst

    def _weights_after_step(self) -> Worst:
        """The engine's update against the bare optimizer's, from the gradients that the engine delivered."""
        self.twin.load_state_dict(self.start)
        parameters = dict(self.twin.named_parameters())
        for name, parameter in self.wrapped.named_parameters():
            like = parameters[name].dtype
            parameters[name].grad = None if parameter.grad is None else parameter.grad.detach().to(like, copy=True)
        optimizer = optimizer_of(self.twin, self.workload.case.optimizer)
        scaler = self.workload.scaler
        if scaler is not None:
            _step_scaled(optimizer, scaler)
        else:
            optimizer.step()
        self.trainer.step_synchronized(scaler)
        return self._compare(Worst("weights"), dict(self.wrapped.named_parameters()), parameters)

    def _compare(self, worst: Worst, found: dict[str, Any], expected: dict[str, Any]) -> Worst:
        for name, tensor in found.items():
            worst.see(_distance(tensor.detach(), expected[name].detach()), 0.0, f"{name}, rank {self.engine.rank}")
        return worst

    def _samples(self) -> Worst:
        """No two ranks train on the same batch, nor on one sample of a real set."""
        case, engine = self.workload.case, self.engine
        chosen = make_batches(case, engine.rank, engine.world_size, engine.device).indices(PARITY_STEP)
        leaves = torch.utils._pytree.tree_leaves(self.batches)
        drawn = "".join(_digest(leaf) for leaf in leaves if torch.is_tensor(leaf))
        taken = [one for rank in engine.gather_json([drawn] if chosen is None else chosen) for one in rank]
        worst = Worst("samples")
        what = "batches" if chosen is None else "samples"
        worst.see(float(len(taken) - len(set(taken))), 0.0, f"{what} that several ranks share")
        return worst


def gather_all(engine: Engine, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Every rank's tensors, name by name, contiguous. Small ones travel together: a message of their own costs more."""
    for names in _chunks(tensors):
        flat = torch.cat([tensors[name].reshape(-1) for name in names])
        sizes = [tensors[name].numel() for name in names]
        rows = [torch.split(row, sizes) for row in engine.gather(flat)]
        for index, name in enumerate(names):
            yield name, [row[index].view(tensors[name].shape) for row in rows]


def _chunks(tensors: dict[str, torch.Tensor]) -> Iterator[list[str]]:
    """Names of tensors of one dtype whose bytes together stay below CHUNK_BYTES, in their order."""
    chunk: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        bytes_ = tensor.numel() * tensor.element_size()
        if chunk and (size + bytes_ > CHUNK_BYTES or tensor.dtype != tensors[chunk[0]].dtype):
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += bytes_
    if chunk:
        yield chunk


def sample_ranks(world_size: int) -> list[int]:
    """Ranks that check (b) looks at: all, or a spread of them that holds the first and the last."""
    if world_size <= MOST_LOCAL_RANKS:
        return list(range(world_size))
    return sorted({round(i * (world_size - 1) / (MOST_LOCAL_RANKS - 1)) for i in range(MOST_LOCAL_RANKS)})


def _merge(found: tuple[dict[str, Any], ...]) -> ParityCheck:
    """The worst of one check over the ranks."""
    worst = max(found, key=lambda one: (not one["passed"], _finite(one["error"])))
    return ParityCheck(**{**worst, "error": _finite(worst["error"])})


def _finite(error: float) -> float:
    """JSON has no NaN and no infinity: both become the largest float."""
    return error if math.isfinite(error) else sys.float_info.max


def _step_scaled(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    """One step of a bare optimizer under a copy of the scaler, which the engine's own step must find untouched."""
    twin = torch.amp.GradScaler(scaler._device, init_scale=scaler.get_scale())
    twin.scale(torch.ones((), device=scaler._device))
    twin.step(optimizer)


def _bare(model: nn.Module) -> nn.Module:
    """The module inside DDP's and torch.compile's wrappers."""
    inner = getattr(model, "module", model)
    return getattr(inner, "_orig_mod", inner)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """‖one - other‖ ÷ ‖other‖, zero where both agree bit for bit (NaN included)."""
    if torch.equal(one.contiguous().view(-1), other.contiguous().view(-1)):
        return 0.0
    size = float(other.double().norm())
    return float((one.double() - other.double()).norm()) / (size or 1.0)


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()[:16]
