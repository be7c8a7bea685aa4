"""One training step, the same for every engine: zero_grad, forward, backward, update.

Only the wrapper varies between contestants; whatever else touches the numbers is set here, from the case.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from benches.engines.base import Trainer
from benches.memory import steady_malloc
from benches.spec import Case, OptimizerSpec
from benches.workloads import emulated
from benches.workloads.data import Batches, stream_seed
from benches.workloads.models import build_model, loss_function

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_numerics(case: Case) -> None:
    """Threads and numeric switches of this process, and its malloc."""
    steady_malloc()
    torch.set_num_threads(case.cluster.threads_per_rank)
    torch.backends.cuda.matmul.allow_tf32 = case.tf32
    torch.backends.cudnn.allow_tf32 = case.tf32
    torch.backends.cudnn.benchmark = case.cudnn_benchmark


def bare_model(case: Case, device: torch.device) -> nn.Module:
    """The model in training mode, seeded, on its device, in its memory format, wrapped by nothing."""
    model = build_model(case.model, case.seed).to(device).train()
    if case.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


def compiled(case: Case, model: nn.Module) -> nn.Module:
    """The model as the engine gets it: compiled where the case asks for that."""
    return torch.compile(model) if case.compile else model  # type: ignore[return-value]


def make_optimizer(parameters: list[nn.Parameter], spec: OptimizerSpec) -> torch.optim.Optimizer:
    """The optimizer of the case; the learning rate is taken as it is."""
    if spec.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=spec.fused
        )
    kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=spec.lr, weight_decay=spec.weight_decay, fused=spec.fused, capturable=spec.capturable)


def optimizer_of(model: nn.Module, spec: OptimizerSpec) -> torch.optim.Optimizer:
    """The model's: that of the case, or for an emulated model one that takes the time of the profiled one's."""
    parameters, stand_in = list(model.parameters()), emulated.find(model)
    return make_optimizer(parameters, spec) if stand_in is None else NoUpdate(parameters, spec.lr, stand_in.update_s)


class NoUpdate(torch.optim.Optimizer):
    """Leaves the weights as they are, and sleeps while an accelerator would update them."""

    def __init__(self, params: Any, lr: float = 0.0, update_s: float = 0.0) -> None:
        # Horovod makes its optimizer of one's parameter groups alone: whatever is needed must stand in them.
        super().__init__(params, {"lr": lr, "update_s": update_s})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Takes `update_s` seconds."""
        time.sleep(self.param_groups[0]["update_s"])


class Workload:
    """Forward and backward of one case, and how batches are laid out."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        self.loss: Callable[[nn.Module, Any], torch.Tensor] = loss_function(case.model)
        self.scaler = torch.amp.GradScaler(device.type) if case.precision == "fp16" else None

    def arrange(self, batch: Any) -> Any:
        """Put pictures into the case's memory format."""
        if not self.case.channels_last:
            return batch
        return torch.utils._pytree.tree_map_only(torch.Tensor, _channels_last, batch)

    def backward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """One pass, forward and backward, through `model`; returns the loss as a share of the step's mean loss."""
        with self._autocast():
            loss = self.loss(model, batch)
        if self.case.accumulation_steps > 1:
            loss = loss / self.case.accumulation_steps
        scaled = self.scaler.scale(loss) if self.scaler is not None else loss
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def passes(self, trainer: Trainer, batches: Iterable[Any]) -> torch.Tensor:
        """Every pass of one step through the trainer's model, one for each batch; returns the mean loss."""
        total: torch.Tensor | None = None
        for number, batch in enumerate(batches, start=1):
            last = number == self.case.accumulation_steps
            with nullcontext() if last else trainer.accumulating():
                loss = self.backward(trainer.model, batch)
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def seed_step(self, step: int, rank: int) -> None:
        """Set the random streams of one rank's step (dropout), for passes that are compared with each other. A model of
        one's own may draw from Python's or numpy's too."""
        seed = stream_seed(self.case.seed, step, rank)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.case.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=AUTOCAST[self.case.precision])


class TrainStep:
    """Callable of a step's number: what is timed."""

    def __init__(self, workload: Workload, trainer: Trainer, batches: Batches) -> None:
        self.workload, self.trainer, self.batches = workload, trainer, batches

    def __call__(self, step: int) -> torch.Tensor:
        """One whole step. Returns the loss, on its device, unread."""
        trainer, workload = self.trainer, self.workload
        trainer.zero_grad()
        loss = workload.passes(trainer, map(self.batch, batch_numbers(workload.case, step)))
        trainer.step(workload.scaler)
        return loss

    def prepare(self, first_step: int, steps: int) -> None:
        """Untimed: make ready the batches of the next `steps` steps from `first_step`."""
        passes = self.workload.case.accumulation_steps
        self.batches.prepare(first_step * passes, steps * passes)

    def batch(self, number: int) -> Any:
        """The batch of one pass, as the model takes it."""
        return self.workload.arrange(self.batches(number))


def batch_numbers(case: Case, step: int) -> range:
    """Numbers of the batches of one step's passes."""
    return range(step * case.accumulation_steps, (step + 1) * case.accumulation_steps)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
