"""`make gpu-check`: on one GPU, builds Horovod with NCCL, runs both engines in bf16 and prints their records.

It takes six minutes at most, the build included. `--dry-run` starts nothing: it prints what would be started, and
composes the study for a machine with one GPU.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from benches import record
from benches.config import Resolved, compose
from benches.driver import command_for
from benches.errors import UserError
from benches.folder import StudyFolder
from benches.machine import Machine
from benches.schedule import Turn, once
from benches.spec import Study
from launchers.spec import Command
from launchers.supervise import CHECKOUT, StopFlag, interrupts, run
from launchers.tools import Packages, Tools

LIMIT_S = 360.0
"""For everything."""
STUDY = (
    "experiment=gpu",
    "cluster.ranks_per_node=1",
    "data.per_rank_batch=64",
    "block_steps=20",
    "limit_s=90",
    "study.launches=1",
    "study.control=false",
    "study.rounds=3",
    "study.contestants.graphed={engine: ddp, transport: nccl, cuda_graphs: true}",
)
"""ResNet-50 in bf16 under DDP, as it is and as a CUDA graph, and under Horovod, all over NCCL."""


class Assumed(Tools):
    """What is there once the first command has run; nothing is asked."""

    def packages(self, python: str) -> Packages:
        return Packages(torch=True, horovod=True, mpi4py=True, libraries=())


def commands(words: list[str], force: bool) -> list[tuple[str, ...]]:
    """What is started, in turn. `words`: the study's; `force`: replace a Horovod without NCCL."""
    ringduel = (sys.executable, "-m", "benches")
    install = (*ringduel, "install-horovod", "--gpu", *(["--force"] if force else []))
    return [install, (*ringduel, "run", *words)]


def launches(study: Study) -> Iterator[Turn]:
    """All launches of the study, for whoever reads: in the order of its contestants."""
    for launch in range(study.launches):
        yield from (Turn(one, launch) for one in once(study.contestants))


def planned(resolved: Resolved) -> Iterator[Command]:
    """The command of each launch of the study."""
    folder = StudyFolder(resolved.results / resolved.study.name, resolved.study)
    for turn in launches(resolved.study):
        out = folder.launch(turn.contestant, turn.launch)
        yield command_for(turn, folder.case_file(turn.case), out, resolved.study.rounds, Assumed())


def dry_run(words: list[str], force: bool) -> int:
    """Print every command. Raises UserError where the study does not compose."""
    resolved = compose(words, machine=Machine(gpus=lambda _: 1))
    for command in commands(words, force):
        print(shlex.join(command))
    for launch in planned(resolved):
        print(f"  {launch.text()}")
    return 0


def check(words: list[str], force: bool, stop: StopFlag) -> int:
    """Run the commands and print the records. Raises UserError where the study does not compose here."""
    resolved = compose(words)
    deadline = time.monotonic() + LIMIT_S
    folder = resolved.results / resolved.study.name
    for number, command in enumerate(commands(words, force)):
        print(f"$ {shlex.join(command)}", flush=True)
        # Beside the study's folder, which must not be there before the study.
        log = folder.with_name(f"{folder.name}.{number}.log")
        line = Command(command, {}, str(CHECKOUT))
        limit_s = max(1.0, deadline - time.monotonic())
        outcome = run(line, log=log, limit_s=limit_s, token=uuid.uuid4().hex, stop=stop)
        print(log.read_text(errors="replace"), flush=True)
        if outcome.status == "interrupted":
            return 130
        if outcome.status != "ok" and not number:
            print(f"gpu-check: {outcome.reason}", file=sys.stderr)
            return 1
    return show(resolved)


def show(resolved: Resolved) -> int:
    """Print every record, then what is wrong with each. Exit status: 1 where anything is."""
    folder = StudyFolder(resolved.results / resolved.study.name, resolved.study)
    bad = False
    for turn in launches(resolved.study):
        path = folder.launch(turn.contestant, turn.launch)
        if not (path / record.HEADER).exists():
            print(f"{turn.case.cell}: no record in {path}")
            bad = True
            continue
        header = record.read(path)
        print(msgspec.json.format(msgspec.json.encode(header), indent=1).decode())
        wrong = faults(header)
        print(f"{turn.case.cell}: {'; '.join(wrong) or f'holds, {step_ms(path):.2f} ms a step'}\n")
        bad = bad or bool(wrong)
    return int(bad)


def faults(header: record.Header) -> list[str]:
    """What a launch on a GPU must show and does not, in words."""
    parity = header.parity
    found = {
        f"status {header.status}: {header.reason}": header.status != "ok",
        "parity failed": parity is None or not parity.passed,
        f"timed by {header.clock}, not by device events": header.clock != "cuda_event",
        f"precision {header.case.precision}, not bf16": header.case.precision != "bf16",
        f"transport {header.case.transport}, not nccl": header.case.transport != "nccl",
    }
    return [text for text, holds in found.items() if holds]


def step_ms(path: Path) -> float:
    """Median of the timed steps of a launch."""
    samples = record.read_samples(path).to_pandas()
    return float(np.median(samples.loc[samples["kind"] == "step", "seconds"])) * 1e3


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 all holds, 1 something does not, 2 no GPU or another mistake, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.checks.gpu_check", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands and compose the study; start nothing"
    )
    parser.add_argument("--force", action="store_true", help="replace a Horovod that is there")
    options = parser.parse_args(arguments)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
    words = [*STUDY, f"study.name=gpu-check-{stamp}"]
    try:
        if options.dry_run:
            return dry_run(words, options.force)
        with interrupts() as stop:
            return check(words, options.force, stop)
    except UserError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
