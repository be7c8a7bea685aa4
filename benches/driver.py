"""The driver: it takes a study's launches in turn, supervises each, and sees that each leaves a record. Seconds."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

from benches import record
from benches.folder import StudyFolder
from benches.heat import Entry, Progress, run_heat
from benches.schedule import Turn, heats, turns
from benches.spec import Case
from launchers import choose
from launchers.spec import Command, LaunchSpec
from launchers.supervise import CHECKOUT, StopFlag
from launchers.tools import Tools

FABRIC = ("NCCL_", "UCX_", "FI_", "OMPI_MCA_", "GLOO_")
"""Variables of the network under an engine: from the user's shell they reach every rank of every contestant alike."""
GIVE_UP_AFTER = 2
"""Launches of one case that may fail in succession; then the rest of them is left out."""


class Driver:
    """Runs one study."""

    def __init__(self, folder: StudyFolder, tools: Tools, progress: Progress, stop: StopFlag) -> None:
        self.study, self.folder, self.tools = folder.study, folder, tools
        self.progress, self.stop = progress, stop
        self.failures: Counter[str] = Counter()

    def run(self) -> bool:
        """Run every launch that has no record yet. Returns False when it was interrupted."""
        due = [turn for turn in turns(self.study) if not self.folder.has_record(turn.case, turn.launch)]
        deadline = time.monotonic() + (self.study.budget_s or math.inf)
        done = 0
        for heat in heats(due):
            if self.stop.is_set() or time.monotonic() > deadline:
                break
            self.progress.started(heat[0], done, len(due))
            self._heat([turn for turn in heat if self.failures[turn.case.id] < GIVE_UP_AFTER])
            done += len(heat)
        return not self.stop.is_set()

    def _heat(self, heat: list[Turn]) -> None:
        for turn, header in zip(heat, self.launch(heat), strict=True):
            for _ in range(self.study.retries):
                if header.status in ("ok", "interrupted"):
                    break
                self.folder.set_aside(turn.case, turn.launch)
                (header,) = self.launch([turn])
            self.progress.ended(turn, header)
            self._count(header)

    def launch(self, heat: list[Turn]) -> list[record.Header]:
        """Start the launches of a heat, time them in turn, and return their records."""
        outs = [self.folder.launch(turn.case, turn.launch) for turn in heat]
        commands = [
            command_for(turn, self.folder.case_file(turn.case), out, self.study.rounds, self.tools)
            for turn, out in zip(heat, outs, strict=True)
        ]
        # All commands first: one that cannot be made must not leave another launch started.
        entries = [Entry(*one) for one in zip(heat, outs, commands, strict=True)]
        return run_heat(entries, self.progress, self.stop) if entries else []

    def _count(self, header: record.Header) -> None:
        failed = header.status != "ok"
        self.failures[header.case_id] = self.failures[header.case_id] + 1 if failed else 0
        # The gate is deterministic: another launch would fail it too.
        if header.parity is not None and not header.parity.passed:
            self.failures[header.case_id] = GIVE_UP_AFTER


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
    # Named one by one: launchers differ in what they hand on; mpirun needs names, and horovodrun replaces one of them.
    fabric = {name: value for name, value in os.environ.items() if name.startswith(FABRIC)}
    return {**fabric, **ours, **case.cluster.env}
