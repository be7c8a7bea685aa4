"""Compose on a pretended machine and in an empty shell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benches.config import Resolved, compose
from benches.machine import Machine
from benches.spec import Study


def resolved(
    *words: str, cores: int = 2, gpus: int = 0, shell: Mapping[str, str] | None = None, own: Path | None = None
) -> Resolved:
    return compose(list(words), own, Machine(cores=cores, gpus=lambda _: gpus), shell or {})


def study(*words: str, cores: int = 2, gpus: int = 0, own: Path | None = None) -> Study:
    return resolved(*words, cores=cores, gpus=gpus, own=own).study


def names(found: Study) -> list[str]:
    return [contestant.name for contestant in found.contestants]
