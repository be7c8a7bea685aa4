"""The gate before the clock: does this contestant compute the update that data-parallel training means?

(a) What the engine delivers is compared with the float64 mean of the ranks' unreduced gradients; (b) each rank's own
gradient is compared with what a single process computes from that rank's batch and random stream.
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benches.engines.base import Engine, Trainer
from benches.record import Parity, ParityCheck
from benches.workloads.data import batch_for
from benches.workloads.train import Workload, compiled, make_optimizer

PARITY_STEP = 0
MOST_LOCAL_RANKS = 8
"""Above this many ranks, check (b) runs on a sample of them of this size."""


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
    return ku / (1 - ku)


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


def reduction_error(delivered: torch.Tensor, mean: Mean) -> tuple[float, float]:
    """Largest |delivered - mean| in units of the mean magnitude sum|g_i|/n, and its bound γ(n+1).

    The bound is that of a sum of n terms and one division, relative to the magnitudes summed and not to the result,
    which may cancel.
    """
    kind = torch.finfo(delivered.dtype)
    # A division before the sum may fall below the normal numbers, where rounding is absolute.
    underflow = mean.ranks * kind.smallest_normal * kind.eps
    excess = (delivered.double().sub_(mean.value)).abs_().sub_(underflow).clamp_(min=0)
    # Where nothing was summed, 0 / 0 is no error; anything else stays infinite.
    relative = (excess / mean.magnitude).masked_fill_((excess == 0) & (mean.magnitude == 0), 0)
    return float(relative.max()) if relative.numel() else 0.0, gamma(mean.ranks + 1, delivered.dtype)


@dataclass
class Projection:
    """⟨delivered, mean⟩ ÷ ⟨mean, mean⟩ over all tensors: sees one rank's gradient scaled where rounding hides it.

    Roundings are independent and of mean zero, so their effect on the projection has a standard deviation of at most
    u·√(n+1)·√Σ(mean·magnitude)² ÷ Σmean²; the bound is eight of them (Higham, section 2.8, statistical estimates).
    """

    inner: float = 0.0
    square: float = 0.0
    variance: float = 0.0

    def add(self, delivered: torch.Tensor, mean: Mean) -> None:
        """Take in one tensor."""
        value = mean.value.view(-1)
        self.inner += float(delivered.double().view(-1).dot(value))
        self.square += float(value.dot(value))
        weight = value * mean.magnitude.view(-1)
        self.variance += (mean.ranks + 1) * unit_roundoff(delivered.dtype) ** 2 * float(weight.dot(weight))

    def result(self) -> tuple[float, float]:
        """|projection - 1| and its bound."""
        if self.square == 0:
            return 0.0, 0.0
        return abs(self.inner / self.square - 1), 8 * self.variance**0.5 / self.square


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
        self.batch = self._batch(engine.rank)
        self.start: dict[str, torch.Tensor] = {}

    def run(self) -> list[Worst]:
        weights = self._initial_weights()
        own = self._own_gradients()
        self._refuse_unused(own)
        self._deliver()
        reduction, projection = self._reduction(own)
        buffers = self._compare(Worst("buffers"), dict(self.wrapped.named_buffers()), dict(self.twin.named_buffers()))
        local = self._local(own)
        return [weights, reduction, projection, local, buffers, self._weights_after_step(), self._samples()]

    def _initial_weights(self) -> Worst:
        """All ranks start from the same weights and buffers; the twin takes them over."""
        self.start = {name: tensor.detach().clone() for name, tensor in self.wrapped.state_dict().items()}
        digests = self.engine.gather_json({name: _digest(tensor) for name, tensor in self.start.items()})
        worst = Worst("initial_weights")
        for name in self.start:
            different = sum(digest[name] != digests[0][name] for digest in digests)
            worst.see(float(different), 0.0, name)
        return worst

    def _batch(self, rank: int) -> Any:
        case, engine = self.workload.case, self.engine
        return self.workload.arrange(batch_for(case, rank, engine.world_size, PARITY_STEP, engine.device))

    def _alone(self, rank: int) -> dict[str, torch.Tensor]:
        """The bare model's gradients, from the start, on one rank's batch and random stream."""
        self.twin.load_state_dict(self.start)
        self.twin.zero_grad()
        self.workload.seed_step(PARITY_STEP, rank)
        self.workload.backward(self.forward, self.batch if rank == self.engine.rank else self._batch(rank))
        return {name: p.grad.clone() for name, p in self.twin.named_parameters() if p.grad is not None}

    def _own_gradients(self) -> dict[str, torch.Tensor]:
        """This rank's gradients; in fp16, at the first loss scale at which they are finite on every rank."""
        own = self._alone(self.engine.rank)
        scaler = self.workload.scaler
        while scaler is not None and scaler.get_scale() > 1:
            finite = all(bool(gradient.isfinite().all()) for gradient in own.values())
            if all(self.engine.gather_json(finite)):
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
        self.trainer.zero_grad()
        self.workload.seed_step(PARITY_STEP, self.engine.rank)
        self.workload.backward(self.trainer.model, self.batch)
        self.trainer.synchronize()

    def _reduction(self, own: dict[str, torch.Tensor]) -> tuple[Worst, Worst]:
        worst, projection = Worst("reduction"), Projection()
        for name, parameter in self.wrapped.named_parameters():
            if not parameter.requires_grad:
                continue
            gathered = self.engine.gather(own.get(name, torch.zeros_like(parameter)))
            delivered = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            # One memory layout for all, or sums over two tensors would pair other elements (channels_last).
            mean = Mean.of([gradient.contiguous() for gradient in gathered])
            worst.see(*reduction_error(delivered.contiguous(), mean), f"{name}, rank {self.engine.rank}")
            projection.add(delivered.contiguous(), mean)
        seen = Worst("projection")
        seen.see(*projection.result(), f"rank {self.engine.rank}")
        return worst, seen

    def _local(self, own: dict[str, torch.Tensor]) -> Worst:
        """Rank 0 computes the sampled ranks' gradients by itself; allowed is its own run-to-run difference."""
        worst = Worst("local")
        claimed = self.engine.gather_json({name: _digest(gradient) for name, gradient in own.items()})
        for rank in sample_ranks(self.engine.world_size):
            again = self._alone(rank) if self.engine.rank == 0 else {}
            differ = [name for name, gradient in again.items() if _digest(gradient) != claimed[rank].get(name)]
            differ = self.engine.gather_json(differ)[0]
            noise = self._alone(rank) if differ and self.engine.rank == 0 else {}
            worst.see(0.0, 0.0, "")
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
            parameters[name].grad = None if parameter.grad is None else parameter.grad.detach().clone()
        optimizer = make_optimizer(list(parameters.values()), self.workload.case.optimizer)
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
        """No two ranks train on the same batch."""
        leaves = torch.utils._pytree.tree_leaves(self.batch)
        digests = self.engine.gather_json("".join(_digest(leaf) for leaf in leaves if torch.is_tensor(leaf)))
        worst = Worst("samples")
        worst.see(float(len(digests) - len(set(digests))), 0.0, "batches that several ranks share")
        return worst


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
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]
