"""What a model costs before it is launched: its size, one step's time on this machine, its memory.

`python -m benches.cost case.yaml` prints a Cost as JSON; `ringduel doctor` runs its `main` under a time limit.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import nn

from analysis.stats import throughput
from benches.engines.base import Trainer, pick_device
from benches.errors import UserError
from benches.spec import Case, load_case
from benches.workloads.data import make_batches
from benches.workloads.train import TrainStep, Workload, bare_model, compiled, make_optimizer, set_numerics

MIB = 2**20
UNTIMED = 2
"""Steps before those that count: the first ones allocate."""
MOST_STEPS = 10


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Size and speed of one case's model in one process, without an engine."""

    model: str
    device: str
    """cpu or cuda."""
    threads: int
    precision: str
    per_rank_batch: int
    parameters: int
    """Trainable parameters."""
    tensors: int
    """Trainable tensors: messages of a step, were none of them joined."""
    gradient_mb: float
    """All gradients of one rank."""
    buffers_mb: float
    """State that is no parameter, such as BatchNorm's running statistics."""
    largest_parameter: str
    """Name of the largest trainable tensor: no bucket can be smaller."""
    largest_parameter_mb: float
    dtypes: list[str]
    """Types of the trainable tensors."""
    without_gradient: list[str]
    """Trainable tensors that a step gives no gradient: DDP then needs find_unused_parameters."""
    steps: int
    """Steps that were timed, of at most 10."""
    step_time_s: float
    """Their median."""
    samples_per_step: int
    sample: str
    """Unit of throughput."""
    samples_per_s: float
    """At the median step time."""
    peak_memory_mb: float
    """Peak resident memory of the process (CPU) or allocated device memory (CUDA)."""


def measure(case: Case, limit_s: float = 60.0) -> Cost:
    """Build the model of `case` and run at most 12 steps of it here, starting none after `limit_s` seconds.

    The first step is always run. Raises UserError where the model, its batch or its data set cannot be had.
    """
    started = time.monotonic()
    set_numerics(case)
    device = pick_device(case, 0)
    model = bare_model(case, device)
    trainer = Trainer(compiled(case, model), make_optimizer(list(model.parameters()), case.optimizer))
    batches = make_batches(case, 0, 1, device)
    step = TrainStep(Workload(case, device), trainer, batches)
    step.prepare(0, UNTIMED + MOST_STEPS)
    seconds = _time(step, device, started + limit_s)
    return _cost(case, device, model, seconds)


def _time(step: Callable[[int], object], device: torch.device, until: float) -> list[float]:
    """Seconds of each step; the first ones are dropped where more follow."""
    seconds: list[float] = []
    while len(seconds) < UNTIMED + MOST_STEPS and (not seconds or time.monotonic() < until):
        start = time.perf_counter()
        step(len(seconds))
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[UNTIMED:] or seconds[-1:]


def _cost(case: Case, device: torch.device, model: nn.Module, seconds: list[float]) -> Cost:
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    largest = max(trainable, key=lambda name: _bytes(trainable[name]))
    step_time_s = statistics.median(seconds)
    samples_per_step = case.accumulation_steps * case.data.per_rank_batch * case.model.samples_per_item
    return Cost(
        model=case.model.name,
        device=device.type,
        threads=torch.get_num_threads(),
        precision=case.precision,
        per_rank_batch=case.data.per_rank_batch,
        parameters=sum(p.numel() for p in trainable.values()),
        tensors=len(trainable),
        gradient_mb=sum(map(_bytes, trainable.values())) / MIB,
        buffers_mb=sum(map(_bytes, model.buffers())) / MIB,
        largest_parameter=largest,
        largest_parameter_mb=_bytes(trainable[largest]) / MIB,
        dtypes=sorted({str(p.dtype).removeprefix("torch.") for p in trainable.values()}),
        without_gradient=[name for name, p in trainable.items() if p.grad is None],
        steps=len(seconds),
        step_time_s=step_time_s,
        samples_per_step=samples_per_step,
        sample=case.model.sample,
        samples_per_s=throughput([samples_per_step], [step_time_s]),
        peak_memory_mb=_peak_memory_mb(device),
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _peak_memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> int:
    """Print the Cost of a case as JSON. Exit status 2 and one line on stderr for the user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m benches.cost", description=__doc__)
    parser.add_argument("case", type=Path, help="case.yaml")
    parser.add_argument("--limit", type=float, default=60.0, help="start no step after so many seconds")
    options = parser.parse_args(arguments)
    try:
        cost = measure(load_case(options.case), options.limit)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.encode(cost).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
