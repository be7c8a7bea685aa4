"""Cases and model files for the tests of workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benches.spec import Case, ModelSpec, build
from benches.workloads.emulated import Layer, Profile

CONF = Path(__file__).parents[2] / "conf"
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml") if path.stem != "custom")


def composed(*overrides: str) -> Any:
    """The configuration that Hydra makes of these words, as plain values."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose("config", list(overrides)), resolve=True)


def model(name: str, *overrides: str) -> ModelSpec:
    """The model of conf/model/<name>.yaml."""
    return build(ModelSpec, composed(f"model={name}", *overrides)["model"])


MLP = {
    "name": "mlp",
    "factory": "benches.workloads.models:mlp",
    "kwargs": {"width": 16, "depth": 2},
    "batch": "benches.workloads.batches:images",
    "batch_kwargs": {"shape": [1, 8, 8], "classes": 10},
    "loss": "benches.workloads.losses:classification",
    "sample": "image",
}


def case(*, model: Any = None, data: Any = None, ranks: int = 1, **fields: Any) -> Case:
    """A case on the CPU with a small MLP; `model` and `data` add to its parts."""
    content = {
        "engine": "ddp",
        "transport": "gloo",
        "device": "cpu",
        "model": {**MLP, **(model or {})},
        "data": {"name": "synthetic", "per_rank_batch": 4, **(data or {})},
        "optimizer": {},
        "ddp": {},
        "cluster": {"ranks_per_node": ranks},
        **fields,
    }
    return build(Case, content)


def made(layers: tuple[Layer, ...] | None = None, **changes: Any) -> Profile:
    """A profile of two layers whose gradients come in the order in which they are registered, not in the reverse."""
    layers = layers or (
        Layer(name="a", forward_s=0.01, backward_s=0.03, ready=0, parameters=(70_000, 3)),
        Layer(name="b.c", forward_s=0.02, backward_s=0.04, ready=1, parameters=(5,)),
    )
    content = {
        "model": "m",
        "device": "d",
        "torch": "2",
        "per_rank_batch": 2,
        "threads": 1,
        "steps": 1,
        "measured_step_s": 1.0,
        "step_s": 0.1,
        "update_s": 0.0,
        "bytes_per_element": 4,
        "layers": layers,
    }
    return Profile(**{**content, **changes})
