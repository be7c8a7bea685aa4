"""How a launch ended, told from what its agents, its ranks' logs and its supervisor say."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from benches import record
from benches.schedule import Turn
from benches.worker import PARITY_FAILED
from launchers.spec import Command
from launchers.supervise import Outcome

LOG_TAIL_LINES = 25
COMPLAINT_S = 0.5
"""A launcher takes longer to take its job down: Open MPI gives a process 1 s between SIGTERM and SIGKILL."""


def bad_exits(out: Path) -> list[dict[str, Any]]:
    """Ranks' ends that were not good, as their agents noted, the likeliest cause first, else the first.

    A launcher that takes its job down sends SIGTERM: such ends are never the cause. A rank that is killed otherwise
    loses its connections before its agent knows, so that another one may complain earlier.
    """
    notes = (json.loads(path.read_text()) for path in (out / "exits").glob("rank*.json"))
    bad = [one for one in notes if one["exit_code"] != 0]
    return sorted(bad, key=lambda one: (one["signal"] == "SIGTERM", one["signal"] is None, one["at"]))


def lost_rank(out: Path, rank: int | None, phase: str | None, at: float) -> str | None:
    """One line on a rank whose agent left without a note of the rank's end; None where that is not so.

    at: when that was heard, seconds since the epoch. A rank that had ended badly before is the cause: its launcher took
    the others down. Not so one that complained just before: a rank that goes with its agent is missed by the others at
    once, and the driver may hear of it a little later.
    """
    if rank is None or (out / "exits" / f"rank{rank}.json").exists():
        return None
    if any(one["at"] <= at - (0.0 if one["signal"] else COMPLAINT_S) for one in bad_exits(out)):
        return None
    return f"rank {rank}: its agent is gone in {phase or 'start-up'}"


def failed_rank(out: Path) -> str | None:
    """One line on the first rank that ended badly; None while there is none."""
    bad = [one for one in bad_exits(out) if one["exit_code"] != PARITY_FAILED]
    return describe_exit(bad[0]) if bad else None


def describe_exit(one: dict[str, Any]) -> str:
    """`rank 1: killed by SIGKILL in warmup`."""
    how = f"killed by {one['signal']}" if one["signal"] else f"exited with status {one['exit_code']}"
    return f"rank {one['rank']}: {one['error'] or how} in {one['phase'] or 'start-up'}"


def failed_header(
    turn: Turn,
    out: Path,
    command: Command,
    started: datetime.datetime,
    outcome: Outcome,
    phase: str | None = None,
    lost: str | None = None,
) -> record.Header:
    """The record of a launch whose ranks left none.

    phase: what its rank 0 was last in, None: unknown. lost: as `lost_rank` says.
    """
    status = outcome.status if outcome.status != "ok" else "failed"
    cause = lost or failed_rank(out)
    reason = outcome.reason or cause or "the launcher ended well but no rank wrote a record"
    if outcome.status == "failed" and not outcome.launcher_killed:
        reason = cause or reason
    return record.Header(
        case_id=turn.case.id,
        case=turn.case,
        launch=turn.launch,
        status=status,
        reason=reason if outcome.status != "timeout" or not phase else f"{reason} (rank 0 was in {phase})",
        log_tail=log_tail(out),
        command=command.text(),
        started_at=started.isoformat(timespec="seconds"),
        duration_s=outcome.duration_s,
        world_size=0,
    )


def log_tail(out: Path) -> list[str]:
    """Last lines of the log of the rank that failed first, or of the launcher where no rank came so far."""
    logs = [out / "logs" / f"rank{one['rank']}.log" for one in bad_exits(out)]
    logs += [*sorted((out / "logs").glob("rank*.log")), out / "logs" / "launcher.log"]
    texts = (path.read_text(errors="replace").strip() for path in logs if path.exists())
    return next((text.splitlines()[-LOG_TAIL_LINES:] for text in texts if text), [])
