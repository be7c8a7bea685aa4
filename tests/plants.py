"""Run as one rank of a real process group: plants fault after fault under DDP, and writes what the gate says of each.

`python plants.py OUT`, with torchrun's variables. OUT: JSON, by name of the plant {check: where} of the checks that
failed; `fair`: the same of settings in which nothing is wrong.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from running import MIXED, make_case
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zoo import Mixed

from benches import parity
from benches.engines.base import Trainer
from benches.engines.ddp import DdpEngine
from benches.spec import Case
from benches.workloads import data
from benches.workloads.train import Workload, bare_model, make_optimizer

DIGITS = {
    "model": {
        "name": "mlp",
        "factory": "benches.workloads.models:mlp",
        "kwargs": {"width": 16, "depth": 2},
        "batch": "benches.workloads.batches:images",
        "batch_kwargs": {"shape": [1, 8, 8], "classes": 10},
        "loss": "benches.workloads.losses:classification",
    },
    "data": {"name": "digits", "per_rank_batch": 4},
}
HALF = {"model": {**MIXED, "factory": "plants:half"}}
BF16 = {"precision": "bf16"}
FAIR = 40


def half(width: int = 768) -> nn.Module:
    """A model with bf16 weights: its gradients travel in bf16. Wide, since roundings of few elements hide 1.01."""
    return halved(Mixed(width))


def halved(model: nn.Module) -> nn.Module:
    model.register_forward_pre_hook(lambda _, inputs: tuple(one.bfloat16() for one in inputs))
    return model.bfloat16()


@dataclass
class Rig:
    """One contestant under the gate, before and after the engine took it."""

    engine: DdpEngine
    workload: Workload
    model: nn.Module
    optimizer: torch.optim.Optimizer
    trainer: Trainer = None  # type: ignore[assignment]
    undo: list[Callable[[], None]] = field(default_factory=list)

    @property
    def last(self) -> bool:
        return self.engine.rank == self.engine.world_size - 1

    def patch(self, holder: Any, name: str, value: Any) -> None:
        """Replace an attribute until the plant has been judged."""
        original = getattr(holder, name)
        self.undo.append(lambda: setattr(holder, name, original))
        setattr(holder, name, value)


def summed(rig: Rig) -> None:
    def synchronize() -> None:
        for parameter in rig.model.parameters():
            parameter.grad *= rig.engine.world_size  # type: ignore[operator]

    rig.patch(rig.trainer, "synchronize", synchronize)


def one_rank_scaled(rig: Rig) -> None:
    if rig.last:
        for parameter in rig.model.parameters():
            parameter.register_hook(lambda gradient: gradient * 1.01)


def learning_rate_times_size(rig: Rig) -> None:
    for group in rig.optimizer.param_groups:
        group["lr"] *= rig.engine.world_size


def same_batches(rig: Rig) -> None:
    original = data.stream_seed
    rig.patch(data, "stream_seed", lambda seed, step, rank, use="step": original(seed, step, 0, use))


def same_samples(rig: Rig) -> None:
    original = data.DistributedSampler

    def sampler(order: Any, size: int, rank: int, **options: Any) -> Any:
        return original(order, size, 0, **options)

    rig.patch(data, "DistributedSampler", sampler)


def not_reduced(rig: Rig) -> None:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(rig.model, ["head.weight"])


def frozen(rig: Rig) -> None:
    rig.model.head.weight.requires_grad_(False)  # type: ignore[operator, union-attr]


def not_updated(rig: Rig) -> None:
    rig.optimizer.param_groups[0]["params"].pop()


def buffers_unsynced(rig: Rig) -> None:
    if rig.last:
        rig.model.features[1].running_mean.add_(1)  # type: ignore[operator, union-attr, index]


def buffers_frozen(rig: Rig) -> None:
    rig.model.features[1].eval()  # type: ignore[operator, union-attr, index]


def autocast(rig: Rig) -> None:
    rig.model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(rig.model.forward)


def weights_cast(rig: Rig) -> None:
    halved(rig.model)


def another_seed(rig: Rig) -> None:
    if rig.last:
        rig.workload.case = msgspec.structs.replace(rig.workload.case, seed=99)


def another_stream(rig: Rig) -> None:
    if rig.last:
        rig.patch(rig.workload, "seed_step", lambda step, rank: torch.manual_seed(99))


def zero_grad_skipped(rig: Rig) -> None:
    rig.patch(rig.trainer, "zero_grad", lambda: None)


BEFORE = {
    "dropped from the reduction": not_reduced,
    "frozen": frozen,
    "weights in another dtype": weights_cast,
}
"""Planted before the engine takes the model."""
BRIEF = ["learning rate x size", "same batches", "same samples", "buffers unsynced", "nothing, fp32"]
"""Judged by the brief gate too."""
AFTER: dict[str, tuple[Callable[[Rig], None], dict[str, Any]]] = {
    "summed": (summed, {}),
    "one rank x 1.01, fp32": (one_rank_scaled, {}),
    "one rank x 1.01, autocast": (one_rank_scaled, BF16),
    "one rank x 1.01, bf16": (one_rank_scaled, HALF),
    "learning rate x size": (learning_rate_times_size, {}),
    "same batches": (same_batches, {}),
    "same samples": (same_samples, DIGITS),
    "dropped from the update": (not_updated, {}),
    "buffers unsynced": (buffers_unsynced, {}),
    "buffers frozen": (buffers_frozen, {}),
    "autocast": (autocast, {}),
    "another seed": (another_seed, {}),
    "another random stream": (another_stream, {}),
    "zero_grad skipped": (zero_grad_skipped, {}),
    "nothing, fp32": (lambda rig: None, {}),
    "nothing, autocast": (lambda rig: None, BF16),
    "nothing, bf16": (lambda rig: None, HALF),
    "nothing, digits": (lambda rig: None, DIGITS),
}


def judge(
    engine: DdpEngine, case: Case, before: Callable[[Rig], None], after: Callable[[Rig], None], whole: bool = True
) -> dict[str, str]:
    """The checks that failed, with where."""
    engine.case, engine.settings = case, case.ddp  # type: ignore[assignment]
    model, twin = (bare_model(case, engine.device) for _ in range(2))
    rig = Rig(engine, Workload(case, engine.device), model, make_optimizer(list(model.parameters()), case.optimizer))
    before(rig)
    rig.trainer = engine.prepare(rig.model, rig.optimizer)
    after(rig)
    try:
        verdict = parity.check(engine, rig.workload, rig.trainer, twin, whole)
    finally:
        for undo in reversed(rig.undo):
            undo()
    return {check.name: check.where for check in verdict.checks if not check.passed}


def fair_settings(ranks: int) -> list[dict[str, Any]]:
    """Random settings, the same on every rank, under which the gate must stay silent."""
    draw = random.Random(ranks)
    return [fair_setting(draw) for _ in range(FAIR)]


def fair_setting(draw: random.Random) -> dict[str, Any]:
    graph = draw.choice([{}, {"static_graph": True}, {"find_unused_parameters": True}])
    # torch's static graph takes no accumulation.
    passes = draw.choice([1, 1, 2, 3]) if "static_graph" not in graph else 1
    optimizer = {"name": draw.choice(["sgd", "adam", "adamw"]), "lr": 10 ** draw.uniform(-4, -1)}
    return {
        "seed": draw.randrange(2**31),
        "precision": draw.choice(["fp32", "bf16", "fp16"]),
        "channels_last": draw.random() < 0.5,
        "accumulation_steps": passes,
        "data": {"per_rank_batch": draw.randint(1, 9)},
        "optimizer": {**optimizer, "momentum": draw.choice([0.0, 0.9]), "weight_decay": draw.choice([0.0, 0.01])},
        "ddp": {
            "bucket_cap_mb": draw.choice([None, 0.001, 0.01, 25]),
            "gradient_as_bucket_view": draw.random() < 0.5,
            "broadcast_buffers": draw.random() < 0.5,
            **graph,
        },
        "model": {**MIXED, "kwargs": {"width": draw.randint(2, 24)}},
    }


def main(out: Path) -> None:
    nothing: Callable[[Rig], None] = lambda rig: None  # noqa: E731
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    engine = DdpEngine(make_case("ddp", "gloo", ranks))
    found: dict[str, Any] = {}
    for name, plant in BEFORE.items():
        found[name] = judge(engine, make_case("ddp", "gloo", ranks), plant, nothing)
    for name, (plant, changes) in AFTER.items():
        found[name] = judge(engine, make_case("ddp", "gloo", ranks, **changes), nothing, plant)
    for name in BRIEF:
        plant, changes = AFTER[name]
        found[f"{name}, brief"] = judge(engine, make_case("ddp", "gloo", ranks, **changes), nothing, plant, False)
    half = make_case("ddp", "gloo", ranks, precision="fp16")
    found["zero_grad skipped, fp16, brief"] = judge(engine, half, nothing, zero_grad_skipped, False)
    settings = fair_settings(ranks)
    verdicts = [judge(engine, make_case("ddp", "gloo", ranks, **changes), nothing, nothing) for changes in settings]
    found["fair"] = [{**one, "settings": changes} for one, changes in zip(verdicts, settings, strict=True) if one]
    if engine.rank == 0:
        out.write_text(json.dumps(found))
    engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # As a rank ends: a process group that DDP holds on to has threads, which abort an ordinary exit now and then.
    os._exit(0)
