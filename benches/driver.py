"""The driver: it takes a study's launches in turn, supervises each, and sees that each leaves a record. Seconds."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benches import record
from benches.folder import StudyFolder
from benches.spec import Case, Contestant, Study
from benches.worker import PARITY_FAILED, SUPERVISED
from launchers import choose
from launchers.spec import Command, LaunchSpec
from launchers.supervise import Outcome, StopFlag, run
from launchers.tools import Tools

CHECKOUT = Path(__file__).resolve().parent.parent
LOG_TAIL_LINES = 25
FABRIC = ("NCCL_", "UCX_", "FI_", "OMPI_MCA_", "GLOO_")
"""Variables of the network under an engine: from the user's shell they reach every rank of every contestant alike."""
GIVE_UP_AFTER = 2
"""Launches of one case that may fail in succession; then the rest of them is left out."""


class Progress(Protocol):
    """What the driver tells whoever watches."""

    def started(self, turn: Turn, number: int, total: int) -> None: ...
    def ticked(self, turn: Turn, said: dict[str, Any]) -> None: ...
    def ended(self, turn: Turn, header: record.Header) -> None: ...


@dataclass(frozen=True)
class Turn:
    """One launch that is due."""

    contestant: Contestant
    launch: int

    @property
    def case(self) -> Case:
        return self.contestant.case


def turns(study: Study) -> Iterator[Turn]:
    """Every launch of the study, in the order in which they run.

    The contestants of a point follow each other, so that a slow drift of the machine hits all alike; their order is
    rotated from launch to launch, so that none always comes first (a Latin square).
    """
    points: dict[str, dict[str, Contestant]] = {}
    for contestant in study.contestants:
        key = json.dumps(contestant.point, sort_keys=True)
        points.setdefault(key, {}).setdefault(contestant.case.id, contestant)
    seen: set[tuple[str, int]] = set()
    for launch in range(study.launches):
        for contestants in points.values():
            row = list(contestants.values())
            shift = launch % len(row)
            for contestant in row[shift:] + row[:shift]:
                if (contestant.case.id, launch) not in seen:
                    seen.add((contestant.case.id, launch))
                    yield Turn(contestant, launch)


def run_study(study: Study, folder: StudyFolder, tools: Tools, progress: Progress, stop: StopFlag) -> bool:
    """Run every launch that has no record yet. Returns False when it was interrupted."""
    due = [turn for turn in turns(study) if not folder.has_record(turn.case, turn.launch)]
    failures: Counter[str] = Counter()
    deadline = time.monotonic() + study.budget_s if study.budget_s else None
    for number, turn in enumerate(due):
        if stop.is_set():
            return False
        if deadline is not None and time.monotonic() > deadline:
            break
        if failures[turn.case.id] >= GIVE_UP_AFTER:
            continue
        progress.started(turn, number, len(due))
        header = _with_retries(study, folder, tools, turn, progress, stop)
        progress.ended(turn, header)
        failures[turn.case.id] = 0 if header.status == "ok" else failures[turn.case.id] + 1
        if header.parity is not None and not header.parity.passed:
            failures[turn.case.id] = GIVE_UP_AFTER
    return not stop.is_set()


def _with_retries(
    study: Study, folder: StudyFolder, tools: Tools, turn: Turn, progress: Progress, stop: StopFlag
) -> record.Header:
    for attempt in range(study.retries + 1):
        out = folder.launch(turn.case, turn.launch)
        header = launch(study, folder.case_file(turn.case), turn, out, tools, progress, stop)
        if header.status in ("ok", "interrupted") or attempt == study.retries:
            break
        folder.set_aside(turn.case, turn.launch)
    return header


def launch(
    study: Study, case_file: Path, turn: Turn, out: Path, tools: Tools, progress: Progress, stop: StopFlag
) -> record.Header:
    """Start one set of ranks, wait for its end, and return its record, which stands in `out`."""
    clear(out)
    command = command_for(turn, case_file, out, study.rounds, tools)
    (out / "command.sh").write_text(command.text() + "\n")
    started = datetime.datetime.now(datetime.timezone.utc)
    outcome = run(
        supervised(command),
        log=out / "logs" / "launcher.log",
        limit_s=turn.case.limit_s,
        check=lambda: failed_rank(out),
        tick=lambda: progress.ticked(turn, read_progress(out)),
        token=secrets.token_hex(8),
        stop=stop,
    )
    if not (out / record.HEADER).exists():
        record.write(out, failed_header(turn, out, command, started, outcome), None)
    return record.read(out)


def clear(out: Path) -> None:
    """Make the folder of a launch, without what an interrupted try left there."""
    for name in ("logs", "exits"):
        (out / name).mkdir(parents=True, exist_ok=True)
        for path in (out / name).iterdir():
            path.unlink()
    (out / "progress.json").unlink(missing_ok=True)


def command_for(turn: Turn, case_file: Path, out: Path, rounds: int, tools: Tools) -> Command:
    """The command of one launch, as `plan` shows it and `run` starts it."""
    case = turn.case
    args = ("-m", "benches.worker", str(case_file), "--out", str(out), "--rounds", str(rounds))
    spec = LaunchSpec(
        python=case.python or sys.executable,
        args=(*args, "--launch", str(turn.launch)),
        nodes=case.cluster.nodes,
        ranks_per_node=case.cluster.ranks_per_node,
        cwd=str(Path.cwd()),
        env=environment(case),
        yield_when_idle=case.cluster.mpi_yield_when_idle,
        as_root=os.geteuid() == 0,
    )
    return choose.command(case, spec, tools)


def environment(case: Case) -> dict[str, str]:
    """Variables of every rank: threads and import path are ours and the same for all contestants."""
    threads = str(case.cluster.threads_per_rank)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    # Ours first, so that a user's `analysis/` cannot shadow it; last the folder one calls from, for one's own model.
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = os.pathsep.join(dict.fromkeys([str(CHECKOUT), *own, str(Path.cwd())]))
    ours = {**dict.fromkeys(names, threads), "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    # Named one by one, since launchers differ in what they hand on: mpirun needs names, horovodrun replaces one of them.
    fabric = {name: value for name, value in os.environ.items() if name.startswith(FABRIC)}
    return {**fabric, **ours, **case.cluster.env}


def supervised(command: Command) -> Command:
    """The command with the word to its ranks that a driver keeps their logs and records."""
    return Command(command.argv, {**command.env, SUPERVISED: "1"}, command.cwd)


def exits(out: Path) -> list[dict[str, Any]]:
    """How ranks ended, as their agents noted, the first end first."""
    paths = sorted((out / "exits").glob("rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in paths]


def failed_rank(out: Path) -> str | None:
    """One line on the first rank that ended badly; None while there is none."""
    bad = [one for one in exits(out) if one["exit_code"] not in (0, PARITY_FAILED)]
    # A launcher that takes its job down sends SIGTERM to the other ranks: the cause is the one that had no such end.
    bad.sort(key=lambda one: one["signal"] == "SIGTERM")
    return describe_exit(bad[0]) if bad else None


def describe_exit(one: dict[str, Any]) -> str:
    """`rank 1: killed by SIGKILL in warmup`."""
    how = f"killed by {one['signal']}" if one["signal"] else f"exited with status {one['exit_code']}"
    return f"rank {one['rank']}: {one['error'] or how} in {one['phase'] or 'start-up'}"


def read_progress(out: Path) -> dict[str, Any]:
    """What rank 0 last said; empty before it said anything."""
    path = out / "progress.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def failed_header(
    turn: Turn, out: Path, command: Command, started: datetime.datetime, outcome: Outcome
) -> record.Header:
    """The record of a launch whose ranks left none."""
    status = outcome.status if outcome.status != "ok" else "failed"
    reason = outcome.reason or failed_rank(out) or "the launcher ended well but no rank wrote a record"
    if outcome.status == "failed":
        reason = failed_rank(out) or reason
    said = read_progress(out).get("phase")
    return record.Header(
        case_id=turn.case.id,
        case=turn.case,
        launch=turn.launch,
        status=status,
        reason=reason if outcome.status != "timeout" or not said else f"{reason} (rank 0 was in {said})",
        log_tail=log_tail(out),
        command=command.text(),
        started_at=started.isoformat(timespec="seconds"),
        duration_s=outcome.duration_s,
        world_size=0,
    )


def log_tail(out: Path) -> list[str]:
    """Last lines of the log of the rank that failed first, or of the launcher where no rank came so far."""
    bad = [one for one in exits(out) if one["exit_code"] != 0]
    logs = [out / "logs" / f"rank{one['rank']}.log" for one in bad]
    logs += [*sorted((out / "logs").glob("rank*.log")), out / "logs" / "launcher.log"]
    texts = (path.read_text(errors="replace").strip() for path in logs if path.exists())
    return next((text.splitlines()[-LOG_TAIL_LINES:] for text in texts if text), [])
