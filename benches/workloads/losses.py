"""Losses: callables of (model, batch) that return a scalar, for models that do not return their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

# Weight of the auxiliary classifier in PyTorch's own tutorial on fine-tuning Inception v3.
AUX_WEIGHT = 0.4


def classification(model: Callable[..., Any], batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy. Batch: pictures (n, …) and labels (n,); the model returns scores (n, classes)."""
    x, y = batch
    return cross_entropy(model(x), y)


def classification_with_aux(model: Callable[..., Any], batch: tuple[Tensor, Tensor]) -> Tensor:
    """As `classification`, for a model that returns (scores, auxiliary scores) in training: main + 0.4 auxiliary."""
    x, y = batch
    output = model(x)
    if isinstance(output, Tensor):
        return cross_entropy(output, y)
    scores, auxiliary = output
    return cross_entropy(scores, y) + AUX_WEIGHT * cross_entropy(auxiliary, y)
