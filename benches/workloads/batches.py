"""Random batches: callables of (generator, per_rank_batch, device, **batch_kwargs) that return a pytree of tensors.

They draw from the given CPU generator alone and then move to the device: the same values everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def images(
    generator: Generator, per_rank_batch: int, device: torch.device, *, shape: Sequence[int], classes: int
) -> tuple[Tensor, Tensor]:
    """Normal pictures (n, *shape), float32, and labels (n,), int64, below `classes`."""
    x = torch.randn(per_rank_batch, *shape, generator=generator)
    y = torch.randint(classes, (per_rank_batch,), generator=generator)
    return x.to(device), y.to(device)


def causal_tokens(
    generator: Generator, per_rank_batch: int, device: torch.device, *, length: int, vocabulary: int
) -> dict[str, Tensor]:
    """Tokens (n, length), int64, that are their own labels: the model shifts them by one."""
    tokens = torch.randint(vocabulary, (per_rank_batch, length), generator=generator).to(device)
    return {"input_ids": tokens, "labels": tokens}


def masked_tokens(
    generator: Generator,
    per_rank_batch: int,
    device: torch.device,
    *,
    length: int,
    vocabulary: int,
    mask_token: int = 103,
    masked_share: float = 0.15,
) -> dict[str, Tensor]:
    """Tokens (n, length), int64; in each row the same number of places is masked, and only those have labels.

    Token 103 and 15 % are BERT's own. Equal numbers, so that the mean of the ranks' losses is the mean over all.
    """
    tokens = torch.randint(vocabulary, (per_rank_batch, length), generator=generator)
    places = torch.rand(per_rank_batch, length, generator=generator).argsort(dim=1)
    masked = places < max(1, round(masked_share * length))
    labels = tokens.masked_fill(~masked, -100)  # -100: ignored by cross-entropy
    return {"input_ids": tokens.masked_fill(masked, mask_token).to(device), "labels": labels.to(device)}
