"""Language models of transformers with random weights: the configurations are built here, nothing is downloaded."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel


def gpt2(**settings: Any) -> nn.Module:
    """GPT-2 that returns its loss; without `settings` the small one, 124 million parameters."""
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **settings))


def bert(**settings: Any) -> nn.Module:
    """BERT with the masked-word head that returns its loss; without `settings` BERT-base, 110 million parameters."""
    return BertForMaskedLM(BertConfig(**settings))
