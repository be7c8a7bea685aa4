"""The notebook runs from top to bottom, and is kept without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "analysis" / "notebooks" / "compare.ipynb"


def test_the_notebook_runs_and_finds_what_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.delenv("RINGDUEL_STUDY", raising=False)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert len(names["compared"]) == 1
    last = names["theirs"].iloc[-1]
    assert last["efficiency_local"].value == pytest.approx(0.930, abs=0.0005)
    assert names["figure"].axes


def test_no_output_is_stored() -> None:
    assert all(not cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text())["cells"])
