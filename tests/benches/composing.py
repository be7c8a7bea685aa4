"""Studies composed from words on a pretended machine and in an empty shell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from benches.config import Resolved, compose
from benches.machine import Machine
from benches.spec import Study


def resolved(
    *words: str, cores: int = 2, gpus: int = 0, shell: Mapping[str, str] | None = None, own: Path | None = None
) -> Resolved:
    return compose(list(words), own, Machine(cores=cores, gpus=lambda _: gpus), shell or {})


def study(*words: str, cores: int = 2, gpus: int = 0, own: Path | None = None) -> Study:
    """Without the copies that join its heats: those are test_schedule's."""
    found = resolved(*words, cores=cores, gpus=gpus, own=own).study
    return replace(found, contestants=tuple(one for one in found.contestants if not one.copy))


def names(found: Study) -> list[str]:
    return [contestant.name for contestant in found.contestants]
