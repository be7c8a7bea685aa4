"""The gate before the clock: does this contestant compute the update that data-parallel training means?

(a) What the engine delivers is compared with the float64 mean of the ranks' unreduced gradients; (b) each rank's own
gradient is compared with what another rank computes, alone, from that rank's batch and random stream.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benches.engines.base import Engine, Trainer
from benches.header import Parity, ParityCheck
from benches.rounding import Mean, Projection, Wire, as_bytes, distance, reduction_error
from benches.workloads.data import batch_for, make_batches
from benches.workloads.train import Workload, batch_numbers, compiled, optimizer_of

PARITY_STEP = 0
CHUNK_BYTES = 2**25
"""Gradients travel to the gate in messages of about this size: a rank then holds at most so much of every other."""


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


def check(engine: Engine, workload: Workload, trainer: Trainer, twin: nn.Module, whole: bool = True) -> Parity:
    """Run the gate on `trainer`; `twin` is the same bare model, wrapped by nothing. Takes one optimizer step.

    Not `whole`: learning rate, initial weights and samples alone, and no step: gradients are taken to be computed alike
    in every launch of a case under one driver. In fp16 the gate also finds the loss scale, and its step is one of the
    eleven before a CUDA graph may be captured, so that there it is always whole.
    Collective: every rank calls it and gets the same answer, but for `took_s`.
    """
    start = time.perf_counter()
    gate = _Gate(engine, workload, trainer, twin)
    needed = workload.scaler is not None or workload.case.cuda_graphs
    found = gate.run() if whole or needed else gate.run_briefly()
    checks = [_merge(same) for same in zip(*engine.gather_json([vars(worst) for worst in found]), strict=True)]
    reduction = next((one for one in checks if one.name == "reduction"), None)
    return Parity(
        passed=all(one.passed for one in checks),
        error=reduction.error if reduction else None,
        bound=reduction.bound if reduction else None,
        took_s=time.perf_counter() - start,
        checks=checks,
    )


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
        own_buffers = {name: buffer.clone() for name, buffer in self.twin.named_buffers()}
        unused = self._unused(own)
        local = self._local(own)
        if self.workload.case.compile:
            # Else the engine's model would run the twin's graph, which DDP's hooks do not split, here and when timed.
            torch._dynamo.reset()
        stale = self._zero_grad()
        self._deliver()
        reduction, projection = self._reduction(own)
        buffers = self._compare(Worst("buffers"), dict(self.wrapped.named_buffers()), own_buffers)
        step = self._weights_after_step(unused)
        return [rate, weights, stale, reduction, projection, local, buffers, step, self._samples()]

    def run_briefly(self) -> list[Worst]:
        return [self._learning_rate(), self._initial_weights(), self._samples()]

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

    def _unused(self, own: dict[str, torch.Tensor]) -> set[str]:
        """Parameters that get no gradient on any rank. Raises RuntimeError for one that gets none on some rank where
        that would hang or fail in DDP's second step."""
        settings = self.workload.case.ddp
        unused = [n for n, p in self.twin.named_parameters() if p.requires_grad and n not in own]
        by_rank = [set(names) for names in self.engine.gather_json(unused)]
        anywhere = sorted(set.union(*by_rank))
        if anywhere and settings is not None and not (settings.find_unused_parameters or settings.static_graph):
            raise RuntimeError(
                f"ddp.find_unused_parameters=false: {len(anywhere)} parameters get no gradient, such as "
                f"{anywhere[0]}; set it to true, or take them out of the model"
            )
        return set.intersection(*by_rank)

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
        # By the bare model too: who freezes a parameter saves its gradient, its messages and its update.
        bare = {name for name, p in self.twin.named_parameters() if p.requires_grad}
        trained = {name: p for name, p in self.wrapped.named_parameters() if p.requires_grad or name in bare}
        ours = {name: own.get(name, torch.zeros_like(parameter)) for name, parameter in trained.items()}
        delivered = {name: torch.zeros_like(ours[name]) if p.grad is None else p.grad for name, p in trained.items()}
        shared = self._may_share(delivered)
        where = "all ranks alike" if shared else f"rank {self.engine.rank}"
        terms_of = exchange_all if shared else gather_all
        for name, place, terms in terms_of(self.engine, ours):
            for piece, same in self.wire.pieces(delivered[name].reshape(-1)[place], terms):
                mean = Mean.of(same)
                worst.see(*reduction_error(piece, mean, self.wire), f"{name}, {where}")
                projection.add(piece, mean)
        if shared:
            projection = projection.joined(self.engine.gather_json(projection.sums))
        seen = Worst("projection")
        seen.see(*projection.result(), where)
        return worst, seen

    def _may_share(self, delivered: dict[str, torch.Tensor]) -> bool:
        """Whether each rank may judge a share of the elements for all: where every rank was delivered the same, bit for
        bit, as libraries do that are in order. PowerSGD is judged by norms of whole tensors."""
        if self.wire.lossy == "powersgd":
            return False
        digests = self.engine.gather_json([_digest(tensor) for tensor in delivered.values()])
        return all(one == digests[0] for one in digests)

    def _local(self, own: dict[str, torch.Tensor]) -> Worst:
        """Each rank computes the next one's gradients by itself, as it did its own; allowed is its own run-to-run
        difference."""
        worst, engine = Worst("local"), self.engine
        if engine.world_size == 1:
            return worst
        checked = (engine.rank + 1) % engine.world_size
        claimed = engine.gather_json({name: _digest(gradient) for name, gradient in own.items()})[checked]
        again = self._alone(checked)
        differ = [name for name, gradient in again.items() if _digest(gradient) != claimed.get(name)]
        noise = self._alone(checked) if differ else {}
        for name in dict.fromkeys(name for names in engine.gather_json(differ) for name in names):
            theirs = engine.gather(own.get(name, torch.zeros_like(self.twin.get_parameter(name))))[checked]
            if name in differ:
                where = f"{name}, rank {checked}'s as rank {engine.rank} computes it"
                worst.see(distance(theirs, again[name]), distance(noise[name], again[name]), where)
        return worst

    def _weights_after_step(self, unused: set[str]) -> Worst:
        """The engine's update against the bare optimizer's, from the gradients that the engine delivered. Without a
        gradient an optimizer leaves a parameter alone; with one of zeros its weight decay shrinks it."""
        self.twin.load_state_dict(self.start)
        parameters = dict(self.twin.named_parameters())
        for name, parameter in self.wrapped.named_parameters():
            like = parameters[name].dtype
            given = None if name in unused else parameter.grad
            parameters[name].grad = None if given is None else given.detach().to(like, copy=True)
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
            worst.see(distance(tensor.detach(), expected[name].detach()), 0.0, f"{name}, rank {self.engine.rank}")
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


Terms = Iterator[tuple[str, slice, list[torch.Tensor]]]
"""Some elements of one tensor: its name, their place in it when it is flat, and what each rank holds there, by rank."""


def gather_all(engine: Engine, tensors: dict[str, torch.Tensor]) -> Terms:
    """Every rank's tensors, whole. Small ones travel together: a message of their own costs more."""
    for names in _chunks(tensors):
        rows = engine.gather(_flat(tensors, names))
        for name, start, stop in _places(tensors, names):
            yield name, slice(0, stop - start), [row[start:stop] for row in rows]


def exchange_all(engine: Engine, tensors: dict[str, torch.Tensor]) -> Terms:
    """This rank's share of every rank's tensors: together the ranks see each element once, in order."""
    for names in _chunks(tensors):
        flat = _flat(tensors, names)
        width = -(-len(flat) // engine.world_size)
        padded = nn.functional.pad(flat, (0, width * engine.world_size - len(flat)))
        rows = engine.exchange(padded.view(engine.world_size, width)).unbind(0)
        own = engine.rank * width
        for name, start, stop in _places(tensors, names):
            first, last = max(start, own), min(stop, own + width)
            if first < last:
                yield name, slice(first - start, last - start), [row[first - own : last - own] for row in rows]


def _flat(tensors: dict[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in names])


def _places(tensors: dict[str, torch.Tensor], names: list[str]) -> Iterator[tuple[str, int, int]]:
    """Where each tensor begins and ends in `_flat`."""
    start = 0
    for name in names:
        yield name, start, (stop := start + tensors[name].numel())
        start = stop


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


def _merge(found: tuple[dict[str, Any], ...]) -> ParityCheck:
    """The worst of one check over the ranks."""
    worst = max(found, key=lambda one: (not one["passed"], _finite(one["error"])))
    return ParityCheck(**{**worst, "error": _finite(worst["error"]), "bound": _finite(worst["bound"])})


def _finite(error: float) -> float:
    """JSON has no NaN and no infinity: both become the largest float."""
    return error if math.isfinite(error) else sys.float_info.max


def _step_scaled(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    """One step of a bare optimizer under a copy of the scaler, which the engine's own step must find untouched."""
    twin = torch.amp.GradScaler(scaler._device, init_scale=scaler.get_scale())
    twin.scale(torch.ones((), device=scaler._device))
    twin.step(optimizer)


def _bare(model: nn.Module) -> nn.Module:
    """The module inside DDP's and torch.compile's wrappers. A model of one's own may have a part called `module`."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return getattr(inner, "_orig_mod", inner)


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(as_bytes(tensor).cpu().numpy().data).hexdigest()[:16]
