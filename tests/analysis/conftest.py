"""Fixtures of the analysis' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import Plant, plant


@pytest.fixture
def study_folder(tmp_path: Path) -> Callable[..., Path]:
    """Plants a study and returns its folder."""

    def make(plants: list[Plant], **study: Any) -> Path:
        plant(tmp_path / "planted", plants, **study)
        return tmp_path / "planted"

    return make
