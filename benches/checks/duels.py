"""What the checks of the duel share: contestants, studies, heats by hand, and the table at the end. Seconds."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from analysis import table
from analysis.estimate import Estimate
from analysis.launch import MAIN
from benches import record
from benches.config import compose
from benches.control import Control
from benches.driver import Driver, command_for
from benches.errors import UserError
from benches.folder import StudyFolder, open_study
from benches.heat import Entry
from benches.schedule import Turn
from benches.spec import Contestant, Study, build, plain
from launchers.lock import machine_lock
from launchers.supervise import StopFlag, interrupts
from launchers.tools import Tools

CELLS = ("ddp/gloo", "ddp/mpi", "horovod/gloo", "horovod/mpi")
"""Of the CPU, `local` apart."""
LIMIT_S = 120.0
"""For one launch; the time in which it is parked does not count."""


class Told:
    """Progress on standard error: what ended badly, and what the driver has to say."""

    def started(self, turns: Sequence[Turn], number: int, total: int) -> None:
        say(f"launch {turns[0].launch + 1}: {', '.join(turn.contestant.name for turn in turns)}")

    def ticked(self, turn: Turn, said: dict[str, Any], waiting: int) -> None:
        pass

    def ended(self, turn: Turn, header: record.Header) -> None:
        if header.status != "ok":
            say(f"{turn.contestant.name}, launch {turn.launch + 1}: {header.status}: {header.reason}")

    def told(self, text: str) -> None:
        say(text)


def say(text: str) -> None:
    """A line for whoever watches."""
    print(text, file=sys.stderr, flush=True)


def shape(model: str, block_steps: int | None) -> list[str]:
    """What one types for two ranks on the CPU. None: blocks as the model has them."""
    cluster = ["device=cpu", "cluster.ranks_per_node=2", f"limit_s={LIMIT_S:g}"]
    return [f"model={model}", *cluster, *([f"block_steps={block_steps}"] if block_steps else [])]


def contestant(cell: str = "ddp/gloo", model: str = "mlp", block_steps: int | None = 50) -> Contestant:
    """Two ranks of this cell on the CPU; None: blocks as long as the model has them. Raises UserError."""
    engine, _, transport = cell.partition("/")
    words = [f"engine={engine}", f"transport={transport}", *shape(model, block_steps)]
    found = compose(words).study.contestants[0]
    return msgspec.structs.replace(found, name=cell)


def copies(one: Contestant, count: int) -> list[Contestant]:
    """The contestant and further ones that are equal to it. None is number 1, the A/A control: a driver that finds it
    suspicious adds launches, and a check counts those that it asked for."""
    numbers = [0, *range(2, count + 1)]
    return [msgspec.structs.replace(one, name=f"{one.name} #{number}", copy=number) for number in numbers]


def make_study(name: str, contestants: Sequence[Contestant], **settings: Any) -> Study:
    """A study of just these contestants, all in one heat; `settings`: further fields of Study."""
    content = {"name": name, "contestants": plain(tuple(contestants)), "control": False, "confirm": False}
    return build(Study, {**content, **settings})


def run_study(study: Study, results: Path, stop: StopFlag) -> Path:
    """Run all launches that are due; the study's folder. Raises UserError."""
    folder = open_study(study, results)
    with Driver(folder, Tools(), Told(), stop) as driver:
        driver.run()
    return folder.path


def maker(folder: StudyFolder, control: Control) -> Callable[[Turn], Entry]:
    """Starts launches of a study for a heat that is led by hand."""
    tools = Tools()

    def make(turn: Turn) -> Entry:
        out = folder.launch(turn.contestant, turn.launch)
        command = command_for(turn, folder.case_file(turn.case), out, folder.study.rounds, tools)
        return Entry(turn, out, command, control)

    return make


def step_times(folder: Path) -> NDArray[np.float64]:
    """Step times of a study's main launches, shape (contestants, launches, blocks); NaN where there is none."""
    records = table.read(folder)
    blocks = records.blocks[records.blocks["stage"] == MAIN]
    places = [blocks[name].to_numpy(dtype=int) for name in ("contestant", "launch", "block")]
    shape = [len(records.keys), *(int(place.max()) + 1 if len(place) else 0 for place in places[1:])]
    found = np.full(shape, np.nan)
    found[tuple(places)] = blocks["step_time_s"]
    return found


def complete(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Launches in which no block of any contestant is missing."""
    return times[:, ~np.isnan(times).any(axis=(0, 2))]


@dataclass(frozen=True)
class Line:
    """One line of a check's table."""

    what: str
    n: int
    """What `value` rests on: launches, tries, contrasts."""
    value: str
    interval: str = ""
    bar: str = ""
    """Empty: it is shown for information."""
    holds: bool | None = None
    """None: not judged."""


HEAD = ("what", "n", "found", "95 % interval", "bar", "verdict")


def ratio_line(what: str, ratio: Estimate, bar: str, holds: bool | None) -> Line:
    """A line for a ratio over launches."""
    return Line(what, ratio.n, f"{ratio.value:.4f}", f"{ratio.low:.4f} … {ratio.high:.4f}", bar, holds)


def count_line(what: str, hits: int, n: int, bar: str, holds: bool | None) -> Line:
    """A line for a share, with its interval by Clopper and Pearson, Biometrika 26, 1934."""
    return Line(what, n, f"{hits} of {n}", share(hits, n), bar, holds)


def share(hits: int, n: int) -> str:
    """The interval of a share, in per cent; empty for no tries."""
    if not n:
        return ""
    found = binomtest(hits, n).proportion_ci(method="exact")
    return f"{found.low * 100:.1f} … {found.high * 100:.1f} %"


def layout(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as aligned lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def show(lines: Sequence[Line]) -> list[str]:
    """The table."""
    return layout([HEAD, *(_cells(line) for line in lines)])


def _cells(line: Line) -> tuple[str, ...]:
    verdict = {None: "", True: "holds", False: "FAILS"}[line.holds]
    return line.what, str(line.n), line.value, line.interval, line.bar, verdict


def status(lines: Sequence[Line], quick: bool) -> int:
    """Exit status: 1 where a line fails; in a mere try only where nothing was found at all."""
    return int(any(line.holds is False and (not quick or line.n == 0) for line in lines))


def parser(check: str, text: str | None) -> argparse.ArgumentParser:
    """The options that every check has."""
    found = argparse.ArgumentParser(prog=f"python -m benches.checks.{check}", description=(text or "").split("\n")[0])
    found.add_argument("--quick", action="store_true", help="a try of the check itself, that judges nothing")
    found.add_argument("--results", type=Path, default=Path("results/runs"), help="(default: %(default)s)")
    return found


def main(
    check: str, options: argparse.Namespace, limit_s: float, body: Callable[[Path, StopFlag], Sequence[Line]]
) -> int:
    """Run a check in a folder of its own and print its table, also where it was interrupted.

    Exit status: 0 all holds (or a mere try), 1 something does not, 2 a mistake, 130 interrupted. After `limit_s`, which
    no check should need, it is interrupted too.
    """
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
    folder = options.results.absolute() / f"{check}-{stamp}"
    try:
        with machine_lock(check) as others, limited(limit_s) as stop:
            for other in others:
                say(f"warning: study {other.study} runs on this machine; each disturbs the other")
            lines = body(folder, stop)
    except UserError as error:
        say(f"{check}: {error}")
        return 2
    print(*show(lines), f"records: {folder}", sep="\n")
    if stop.is_set():
        say(f"{check}: {stop.reason()}")
        return 130
    return status(lines, options.quick)


@contextlib.contextmanager
def limited(limit_s: float) -> Iterator[StopFlag]:
    """The flag that signals set, and the end of the time too."""
    with interrupts() as stop:
        timer = threading.Timer(limit_s, stop.signals.append, [signal.SIGALRM])
        timer.daemon = True
        timer.start()
        try:
            yield stop
        finally:
            timer.cancel()
