"""Who is blamed where several ranks ended badly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benches import ending

RAISED = {"exit_code": 1, "signal": None, "error": "ValueError: no"}
FOLLOWED = {"exit_code": 1, "signal": None, "error": "RuntimeError: Connection closed by peer"}
KILLED = {"exit_code": None, "signal": "SIGKILL", "error": None}
TAKEN_DOWN = {"exit_code": None, "signal": "SIGTERM", "error": None}
WELL = {"exit_code": 0, "signal": None, "error": None}


def note(out: Path, *ends: dict[str, Any]) -> None:
    """Ends of ranks 0, 1, … , a second apart."""
    (out / "exits").mkdir()
    for rank, end in enumerate(ends):
        entry = {"rank": rank, "phase": "warmup", "at": float(end.get("at", rank)), **end}
        (out / "exits" / f"rank{rank}.json").write_text(json.dumps(entry))


@pytest.mark.parametrize(
    ("ends", "line"),
    [
        ((WELL, WELL), None),
        ((RAISED, FOLLOWED), "rank 0: ValueError: no in warmup"),
        (({**FOLLOWED, "at": 5}, RAISED), "rank 1: ValueError: no in warmup"),
        # Its connections are gone before its agent knows.
        ((FOLLOWED, KILLED), "rank 1: killed by SIGKILL in warmup"),
        ((TAKEN_DOWN, RAISED), "rank 1: ValueError: no in warmup"),
        ((TAKEN_DOWN, FOLLOWED, KILLED), "rank 2: killed by SIGKILL in warmup"),
        ((TAKEN_DOWN,), "rank 0: killed by SIGTERM in warmup"),
    ],
)
def test_the_likeliest_cause_is_named(ends: tuple[dict[str, Any], ...], line: str | None, tmp_path: Path) -> None:
    note(tmp_path, *ends)
    assert ending.failed_rank(tmp_path) == line


def test_an_agent_that_left_after_a_bad_end_is_no_cause(tmp_path: Path) -> None:
    note(tmp_path, {**RAISED, "at": 3})
    assert ending.lost_rank(tmp_path, 1, "timing", at=4) is None
    assert ending.lost_rank(tmp_path, 1, "timing", at=2) == "rank 1: its agent is gone in timing"


@pytest.mark.parametrize(("end", "lost"), [(FOLLOWED, True), (KILLED, False)])
def test_who_complains_just_before_an_agent_is_missed_is_no_cause(
    end: dict[str, Any], lost: bool, tmp_path: Path
) -> None:
    note(tmp_path, {**end, "at": 3})
    assert (ending.lost_rank(tmp_path, 1, "timing", at=3.1) is not None) is lost
