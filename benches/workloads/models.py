"""Models: built from a ModelSpec with seeded weights, and the small ones of our own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benches.errors import UserError
from benches.spec import ModelSpec
from benches.workloads.references import load, one_line

Loss = Callable[[Callable[..., Any], Any], Tensor]


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """The model on the CPU in training mode, its weights drawn from torch's CPU generator seeded by `seed`.

    The same on every rank and device; the caller's random state is left as it was. Raises UserError.
    """
    factory = load(spec.factory, "model.factory")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            model = factory(**spec.kwargs)
        except UserError:
            raise
        except Exception as error:  # a factory may raise anything
            raise UserError(f"model.kwargs={spec.kwargs}: {spec.factory} failed: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"model.factory={spec.factory}: returned a {type(model).__name__}, not a torch.nn.Module")
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"model.factory={spec.factory}: its model has no trainable parameter")
    return model.train()


def loss_function(spec: ModelSpec) -> Loss:
    """Callable of (model, batch) that returns the scalar loss. Raises UserError where it does not import."""
    return loss_of_model if spec.loss is None else load(spec.loss, "model.loss")


def loss_of_model(model: Callable[..., Any], batch: Any) -> Tensor:
    """Loss of a model that returns it, as a scalar or as `.loss` of its output.

    A mapping is passed by keyword, a tuple or list by position, anything else as the one argument.
    """
    if isinstance(batch, Mapping):
        output = model(**batch)
    elif isinstance(batch, (tuple, list)):
        output = model(*batch)
    else:
        output = model(batch)
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise UserError(f"model.loss=null: the model returned a {type(output).__name__} without a loss; name one")
    return loss


def mlp(inputs: int = 64, width: int = 256, depth: int = 5, classes: int = 10) -> nn.Module:
    """`depth` linear layers with ReLU between them. Input: (n, …) of `inputs` numbers; output: (n, classes)."""
    sizes = [inputs, *[width] * (depth - 1), classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def digits_net(width: int = 16) -> nn.Module:
    """Two convolutions and two linear layers for the digits set. Input: (n, 1, 8, 8); output: (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
