"""A model with further compute in front of it: a slow-down that is real, and changes nothing in what is computed."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import nn

from benches.spec import Case
from benches.workloads.references import load

SIZE = 32
"""Of the matrices: one product of them takes some microseconds, so that their number sets the slow-down finely."""


class Slowed(nn.Module):
    """Multiplies two matrices `products` times in each forward pass, then calls the model."""

    def __init__(self, model: nn.Module, products: int) -> None:
        super().__init__()
        self.model, self.products = model, products
        # No buffers, which engines and the parity gate would take for state of the model.
        self._factor, self._product = torch.full((SIZE, SIZE), 1 / SIZE), torch.empty(SIZE, SIZE)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            for _ in range(self.products):
                torch.mm(self._factor, self._factor, out=self._product)
        return self.model(*args, **kwargs)


def slowed(factory: str, kwargs: dict[str, Any], products: int) -> nn.Module:
    """The model of `factory` with so many products before it; 0: none, in the same wrapper."""
    return Slowed(load(factory, "model.factory")(**kwargs), products)


def slow_down(case: Case, products: int) -> Case:
    """The case with this model in place of its own."""
    model = case.model
    kwargs = {"factory": model.factory, "kwargs": model.kwargs, "products": products}
    changed = msgspec.structs.replace(model, factory=f"{__name__}:slowed", kwargs=kwargs)
    return msgspec.structs.replace(case, model=changed)
