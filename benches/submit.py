"""A study in Slurm, from outside of an allocation: one job runs all of it, and what that writes is shown here. Seconds.

The job's driver is `ringduel run` with the same words. What is kept of it lies in `<results>/<study name>.slurm/`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from benches.config import Resolved
from benches.errors import UserError
from benches.preflight import check_results
from launchers import slurm
from launchers.processes import TOKEN
from launchers.spec import without
from launchers.supervise import StopFlag, interrupts, last_line, output

DONE, FAILED, INTERRUPTED = 0, 1, 130
SCRIPT, JOB = "job.sh", "job"
"""In that folder: what was submitted last, and the number of that job."""
LOOK_S = 0.5
"""Between two looks at what the job wrote."""
ASK_S = 5.0
"""Between two questions to Slurm, which serves all its users."""
LOG_S = 30.0
"""For the last lines of a job that has ended to come over a network file system."""
LIMIT_S = 60.0
ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
)
"""States from which a job does not return by itself (squeue(1))."""


@dataclass(frozen=True)
class State:
    """What Slurm says of a job."""

    name: str
    """Such as PENDING; empty: it does not know the job any more."""
    reason: str = ""
    """Why it waits."""
    exit_code: int = 0

    @property
    def ended(self) -> bool:
        return self.name in ENDED or not self.name


def script(resolved: Resolved, words: list[str], config_dir: Path | None, as_json: bool) -> str:
    """What sbatch is given. Raises UserError."""
    assert resolved.slurm is not None
    options = [*(["--config-dir", str(config_dir.absolute())] if config_dir else []), *(["--json"] if as_json else [])]
    driver = [*myself(), "run", *options, *words]
    nodes = max(one.case.cluster.nodes for one in resolved.study.contestants)
    return slurm.batch_script(resolved.slurm, resolved.study.name, nodes, driver, str(Path.cwd()))


def myself() -> tuple[str, ...]:
    """The words by which this program was started: by its script, or as a module."""
    called = shutil.which(sys.argv[0])
    if called and Path(called).name == "ringduel":
        return (os.path.abspath(called),)  # noqa: PTH100  (a link stays one: its environment stands beside it)
    return (sys.executable, "-m", "benches")


def submit_and_follow(
    resolved: Resolved, words: list[str], config_dir: Path | None, as_json: bool, console: Console
) -> int:
    """Submit the study, or take up its job that is still there, and show what it writes until it ends.

    Returns the exit status of the job's driver. An interrupt lets the job go on. Raises UserError where Slurm refuses.
    """
    folder = resolved.results / f"{resolved.study.name}.slurm"

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    if shutil.which("sbatch") is None:
        raise UserError("cluster=slurm: no sbatch on the PATH; type this on a login node of the cluster")
    check_results(resolved.results)
    job = running(folder)
    if job is None:
        job = submit(resolved, script(resolved, words, config_dir, as_json), folder)
        tell(f"study {resolved.study.name}: submitted as job {job}; its script and logs lie in {folder}")
    else:
        tell(f"study {resolved.study.name}: job {job} runs it already, and is followed")
    with interrupts() as stop:
        return Follow(job, folder, tell, stop).run()


def running(folder: Path) -> str | None:
    """The job of this study that has not ended; None where there is none."""
    if not (folder / JOB).exists():
        return None
    job = (folder / JOB).read_text().strip()
    return None if ask(job).ended else job


def submit(resolved: Resolved, text: str, folder: Path) -> str:
    """Give the script to sbatch; the job's number. Raises UserError."""
    assert resolved.slurm is not None
    if resolved.slurm.partition is not None:
        slurm.check_partition(resolved.slurm, output(["sinfo", "--noheader", "--format=%R"], limit_s=LIMIT_S)[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCRIPT).write_text(text)
    # Of this process's own short commands: a job that had it would be taken for one of them. Sbatch's own variables
    # would overrule what the script asks for.
    clean = without([TOKEN, *(name for name in os.environ if name.startswith("SBATCH_"))])
    code, said = output(
        [*clean, "sbatch", "--parsable", f"--chdir={folder}", str(folder / SCRIPT)],
        limit_s=LIMIT_S,
    )
    # With several clusters: `number;cluster`.
    found = re.search(r"^(\d+)(;\S+)?$", said, re.MULTILINE)
    if code != 0 or found is None:
        raise UserError(f"cluster=slurm: sbatch refuses: {last_line(said)}")
    (folder / JOB).write_text(found[1])
    return found[1]


def ask(job: str) -> State:
    """What Slurm says of the job; as if it waited where Slurm does not answer."""
    code, text = output(["scontrol", "--oneliner", "show", "job", job], limit_s=LIMIT_S)
    if code != 0:
        return State("") if "Invalid job id" in text else State("PENDING", "Slurm does not answer")
    return parse(text)


def parse(text: str) -> State:
    """The state in what `scontrol show job` says."""
    found = dict(re.findall(r"\b(JobState|Reason|ExitCode)=(\S+)", text))
    return State(found.get("JobState", ""), found.get("Reason", ""), int(found.get("ExitCode", "0:0").split(":")[0]))


class Tail:
    """A file that grows, copied to a stream."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self.stream, self.offset = path, stream, 0

    def copy(self) -> None:
        """What is new; nothing while the file is not there."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.offset)
            self.stream.write(file.read())
            self.stream.flush()
            self.offset = file.tell()


class Follow:
    """Shows what a job writes, and what becomes of it."""

    def __init__(self, job: str, folder: Path, tell: Callable[[str], None], stop: StopFlag) -> None:
        self.job, self.tell, self.stop = job, tell, stop
        self.out = Tail(folder / f"slurm-{job}.out", sys.stdout.buffer)
        self.err = Tail(folder / f"slurm-{job}.err", sys.stderr.buffer)
        self._told = ""

    def run(self) -> int:
        """Until the job ends, or a signal comes; the exit status."""
        while not (state := ask(self.job)).ended:
            self._tell_waiting(state)
            next_s = time.monotonic() + ASK_S
            while time.monotonic() < next_s:
                self._copy()
                if self.stop.is_set():
                    self.tell(f"job {self.job} goes on; scancel {self.job} ends it, the same command follows it again")
                    return INTERRUPTED
                time.sleep(LOOK_S)
        self._wait_for_log()
        self._copy()
        return self._status(state)

    def _tell_waiting(self, state: State) -> None:
        text = f"{state.name} ({state.reason})" if state.name == "PENDING" else state.name
        if text != self._told:
            self._told = text
            self.tell(f"job {self.job}: {text}")

    def _copy(self) -> None:
        self.err.copy()
        self.out.copy()

    def _wait_for_log(self) -> None:
        deadline = time.monotonic() + LOG_S
        while not self.err.path.exists() and time.monotonic() < deadline and not self.stop.is_set():
            time.sleep(LOOK_S)

    def _status(self, state: State) -> int:
        """By what the job's driver said; a job that Slurm ended is interrupted, and goes on in another one."""
        if state.name == "COMPLETED":
            return DONE
        if state.name == "FAILED" and state.exit_code not in (0, INTERRUPTED):
            return state.exit_code
        if state.name in ("", "FAILED", "BOOT_FAIL") and state.exit_code != INTERRUPTED:
            self.tell(f"job {self.job}: {state.name or 'Slurm has forgotten it'}; see {self.err.path}")
            return FAILED
        self.tell(f"job {self.job}: {state.name}; the same command goes on with what is missing, in another job")
        return INTERRUPTED
