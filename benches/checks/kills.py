"""`make kills`: processes of real duels are killed at random; is anything left, is it told, and does the study go on?

Each kill has a duel of its own, `ringduel run` in a process of its own: two contestants over different cells, two
launches, short blocks. Ranks, agents, launchers and drivers are killed by SIGKILL, while their contestant runs or is
parked, in the first launch, after a random number of blocks. The seed fixes all that is drawn.

What must hold: 10 s later none of the processes that died with it is left, in whatever state (after a driver: none at
all); the study ends with status 0 or 1 without a traceback, and what is left of it has run; a record says that its
launch failed, and why, not just how its other ranks were ended for that. A killed driver can write nothing: there the
same command, typed again, must finish the study.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benches import record
from benches.checks import duels
from benches.checks.duels import Line
from benches.config import compose
from benches.heat import PROGRESS
from launchers.supervise import CHECKOUT, StopFlag

MARK = "RINGDUEL_CHECK"
"""Variable by which all processes of a trial are found."""
ROLES = ("rank", "agent", "launcher", "driver")
STATES = ("running", "parked")
END_S = 10.0
"""Nothing may be left so long after the cause."""
TRIAL_S = 180.0
"""For one run of the command."""
ROUNDS = 12
LAUNCHES = 2
LIMIT_S = 3600.0
FINISHED = "run again, it finished"
REASONS = {
    "rank": r"rank \d+: killed by SIGKILL in timing",
    "agent": r"rank \d+: its agent is gone in timing",
    "launcher": "the launcher was killed by SIGKILL",
    "driver": FINISHED,
}
"""What must be told of a kill, by role; of a driver, which cannot tell, by the next one."""


@dataclass(frozen=True)
class Kill:
    """What is killed, and when."""

    number: int
    role: str
    state: str
    victim: str
    """Cell of its contestant."""
    other: str
    """Cell of the contestant beside it."""
    rank: int
    """Whose rank or agent."""
    block: int
    """The contestant has begun this block of its first launch, at least."""


def plan(count: int, seed: int) -> list[Kill]:
    """`count` kills: each role in each state as often as possible, in random order; the rest is drawn."""
    generator = random.Random(seed)
    kinds = [(role, state) for role in ROLES for state in STATES]
    drawn: list[tuple[str, str]] = []
    while len(drawn) < count:
        drawn += generator.sample(kinds, len(kinds))
    found = []
    for number, (role, state) in enumerate(drawn[:count]):
        victim, other = generator.sample(duels.CELLS, 2)
        found.append(Kill(number, role, state, victim, other, generator.randrange(2), generator.randrange(1, 6)))
    return found


@dataclass(frozen=True)
class Seen:
    """A process as it was found."""

    pid: int
    parent: int
    words: tuple[str, ...]


def pick(kill: Kill, seen: Sequence[Seen], driver: int, out: Path) -> int | None:
    """Process that is to be killed, in the launch whose folder is `out`; None where it is not there yet.

    The launcher is the child of the launch's guard; an agent is a worker, and its rank the worker's child.
    """
    if kill.role == "driver":
        return driver
    own = [one for one in seen if str(out) in one.words]
    guards = {one.pid for one in own if "launchers.guard" in one.words}
    if kill.role == "launcher":
        return next((one.pid for one in own if one.parent in guards), None)
    workers = {one.pid: one for one in own if is_worker(one.words)}
    agents = [one.pid for one in workers.values() if one.parent not in workers]
    ranks = {one.parent: one.pid for one in workers.values() if one.parent in workers}
    # Which of them has which number is no matter: it is drawn all the same.
    chosen = sorted(agent for agent in agents if agent in ranks)[kill.rank : kill.rank + 1]
    return next(iter(chosen if kill.role == "agent" else [ranks[agent] for agent in chosen]), None)


def is_worker(words: Sequence[str]) -> bool:
    """Whether these words are a rank's or its agent's, and not those of a launcher that is to start it."""
    flags = [word for word in words[1:4] if word != "-u"]
    return flags[:2] == ["-m", "benches.worker"]


class Trial:
    """One duel with one kill."""

    def __init__(self, kill: Kill, results: Path) -> None:
        self.kill, self.results = kill, results
        self.mark = secrets.token_hex(8)
        self.log = results / f"kill{kill.number}.log"
        self.words = study_words(kill, results)
        study = compose(self.words).study
        found = next(one for one in study.contestants if one.case.cell == kill.victim)
        self.folder = results / study.name
        self.out = self.folder / "launches" / found.key / "0"

    def run(self) -> Result:
        """Start the duel, kill, and look."""
        with self._driver() as driver:
            strike = self._await_state(driver)
            if strike is None:
                return Result(self.kill, "", [f"never {self.kill.state} in block {self.kill.block}: see {self.log}"])
            doomed = self._doomed(driver)
            os.kill(strike, signal.SIGKILL)
            left = _left(doomed)
            code = _wait(driver, TRIAL_S)
        if self.kill.role == "driver":
            with self._driver() as driver:
                code = _wait(driver, TRIAL_S)
        faults = [f"left after {END_S:g} s: {left}"] if left else []
        faults += self._at_the_end(code)
        return Result(self.kill, self.told(), faults)

    def told(self) -> str:
        """What the records say of the kill."""
        failed = [header for _, header in self._headers() if header.status != "ok"]
        if self.kill.role == "driver":
            return FINISHED if not failed else f"run again: {failed[0].reason}"
        return next((str(header.reason) for header in failed if header.case.cell == self.kill.victim), "")

    def _at_the_end(self, code: int | None) -> Iterator[str]:
        """What is wrong once the study is over."""
        if code not in (0, 1):
            yield f"ended with status {code}" if code is not None else f"not over after {TRIAL_S:g} s"
        # Ours; what a launch wrote is quoted with an indent, and horovodrun ends with a traceback of its own.
        if re.search("^Traceback", self.log.read_text(), re.MULTILINE):
            yield f"a traceback: see {self.log}"
        if left := _left(self._marked()):
            yield f"left at the end: {left}"
        sound = sum(header.status == "ok" for path, header in self._headers() if "aside" not in path.parts)
        wanted = 2 * LAUNCHES - (self.kill.role != "driver")
        if not tells(self.kill.role, self.told()):
            yield f"no record tells of it: {self.told() or 'nothing'}"
        if sound < wanted:
            yield f"only {sound} of {2 * LAUNCHES} launches ended well"

    def _headers(self) -> list[tuple[Path, record.Header]]:
        paths = sorted(self.folder.glob(f"*/*/*/{record.HEADER}"))
        return [(path.relative_to(self.folder), record.read(path.parent)) for path in paths]

    @contextlib.contextmanager
    def _driver(self) -> Iterator[subprocess.Popen[bytes]]:
        """The command in a process of its own; whatever it leaves is killed in the end."""
        self.results.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "benches", "run", *self.words]
        with self.log.open("ab") as log:
            driver = subprocess.Popen(
                argv, cwd=CHECKOUT, env={**os.environ, MARK: self.mark}, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield driver
        finally:
            driver.kill()
            for process in self._marked():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            driver.wait()

    def _await_state(self, driver: subprocess.Popen[bytes]) -> int | None:
        """Wait until the victim is as it should be; the process to kill. None where that never comes."""
        found: list[int] = []
        as_rank = replace(self.kill, role="rank")

        def there() -> bool:
            block = _block(self.out)
            if driver.poll() is not None or block is None or block < self.kill.block:
                return driver.poll() is not None
            seen = [one for process in self._marked() if (one := _seen(process))]
            target, rank = (pick(kill, seen, driver.pid, self.out) for kill in (self.kill, as_rank))
            if target is None or rank is None or _is_stopped(rank) != (self.kill.state == "parked"):
                return False
            found.append(target)
            return True

        _until(there, TRIAL_S)
        return found[0] if found and driver.poll() is None else None

    def _doomed(self, driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """Processes that must end with the one that is killed: its launch's, or all."""
        marked = self._marked()
        if self.kill.role == "driver":
            return [process for process in marked if process.pid != driver.pid]
        guards = [one for one in marked if (seen := _seen(one)) and {"launchers.guard", str(self.out)} <= {*seen.words}]
        return [member for guard in guards for member in [guard, *guard.children(recursive=True)]]

    def _marked(self) -> list[psutil.Process]:
        """Living processes of this trial, without the driver that is this process's child."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                own = process.environ().get(MARK) == self.mark and process.ppid() != os.getpid()
                if own and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def tells(role: str, reason: str) -> bool:
    """Whether a record's reason is the kill, and not what came of it at the ranks that are left."""
    return bool(re.fullmatch(REASONS[role], reason))


@dataclass(frozen=True)
class Result:
    """What came of one kill."""

    kill: Kill
    told: str
    """What the records say."""
    faults: list[str]


def study_words(kill: Kill, results: Path) -> list[str]:
    """What is typed for the duel of one kill."""
    contestants = ["~study.contestants"]
    for cell in (kill.victim, kill.other):
        engine, _, transport = cell.partition("/")
        name = f"study.contestants.{engine}-{transport}"
        contestants += [f"{name}.engine={engine}", f"{name}.transport={transport}"]
    shape = duels.shape("mlp", block_steps=50)
    own = [f"study.name=kill{kill.number}", f"study.launches={LAUNCHES}", f"study.rounds={ROUNDS}"]
    return [*contestants, *shape, *own, "study.control=false", "study.confirm=false", f"results={results}"]


def _block(out: Path) -> int | None:
    """The block in which rank 0 is; None before the first."""
    try:
        said = json.loads((out / PROGRESS).read_text())
    except (OSError, ValueError):
        return None
    return int(said["block"]) if said["phase"] == "timing" else None


def _seen(process: psutil.Process) -> Seen | None:
    try:
        return Seen(process.pid, process.ppid(), tuple(process.cmdline()))
    except psutil.Error:
        return None


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _left(processes: Sequence[psutil.Process]) -> str:
    """Those that do not end in time, with their states; zombies have ended."""
    _until(lambda: not any(map(_lives, processes)), END_S)
    return ", ".join(f"{process.pid} ({process.status()})" for process in processes if _lives(process))


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _wait(driver: subprocess.Popen[bytes], limit_s: float) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return driver.wait(limit_s)
    return None


def _until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def lines(results: Sequence[Result]) -> list[Line]:
    """One line a kill, and their number."""
    found = [
        Line(f"{one.kill.role}, {one.kill.state}: {one.kill.victim}", 1, one.told or "–", "", "", not one.faults)
        for one in results
    ]
    clean = sum(not one.faults for one in results)
    return [*found, duels.count_line("all kills", clean, len(results), "every one", clean == len(results) > 0)]


def main(arguments: list[str] | None = None) -> int:
    """Kill, one after another, and print the table."""
    parser = duels.parser("kills", __doc__)
    parser.add_argument("--kills", type=int, help="how many (default: 20, quick: 2)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    def body(folder: Path, stop: StopFlag) -> list[Line]:
        return lines(list(trials(options, folder, stop)))

    return duels.main("kills", options, LIMIT_S, body)


def trials(options: argparse.Namespace, folder: Path, stop: StopFlag) -> Iterator[Result]:
    """The kills in turn, until a stop."""
    for kill in plan(options.kills or (2 if options.quick else 20), options.seed):
        if stop.is_set():
            return
        result = Trial(kill, folder).run()
        duels.say(f"kill {kill.number + 1}: {kill.role}, {kill.state}, {kill.victim}: {result.told or '–'}")
        for fault in result.faults:
            duels.say(f"    {fault}")
        yield result


if __name__ == "__main__":
    sys.exit(main())
