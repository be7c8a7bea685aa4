"""`make fidelity`: is our step as fast and as lean as a bare script's? A benchmark of Ringduel itself.

Time: both steps live in the same rank processes and take turns, block by block, in balanced order (`turns`). Blocks are
short: what slows a shared machine for a second then meets both. The ratio of a launch is the location over its rounds
of log(our block ÷ theirs) that spikes do not move (analysis.stats), blocks as their slowest rank saw them; intervals
are t intervals over launches. One set of processes cancels what differs from process to process (layout of memory,
place on the cores, connections). It hides what a process has once: start-up, the agent beside each rank, our
environment (threads, Horovod's variables, all at their defaults); and garbage collection, which is off in both. It
hides nothing that a step does: batches, zeroing, forward, backward, reduction, update, our loop and its marks. Both
sides share one gloo group or one background thread of Horovod, where the script's tensors have other names.

How many launches a pair gets is planned in two stages: the first ones tell how much launches differ, and those follow
with which a pair of equal speed holds its bars 19 times in 20. The plan sees the width alone, never the ratio, and the
interval is the one that belongs to such a plan (analysis.stats.ratio_in_two_stages). `--records` goes on with what an
earlier run left, by the same plan.

Memory: peak resident memory of each alone, in processes of its own under the same launcher, the largest over ranks;
ours from after the parity gate, as in a record.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions
from scipy.optimize import brentq

from analysis import stats
from analysis.estimate import Estimate
from benches import driver, record
from benches.checks import TURNS
from benches.config import compose
from benches.ending import failed_rank
from benches.errors import UserError
from benches.spec import Case, dump
from launchers.lock import machine_lock
from launchers.supervise import StopFlag, interrupts, run
from launchers.tools import Tools

HERE = Path(__file__).resolve().parent
LIMIT_S = 240.0
"""For one launch."""
LAUNCHES, LAUNCHES_QUICK = 6, 2
MOST_LAUNCHES = 36
"""Of one pair: three quarters of an hour, where its interval is too wide at first."""
MOST_MEMORY_MB = 64.0
SCRIPTS = {
    "local": "local.py",
    "ddp/gloo": "ddp_gloo.py",
    "ddp/mpi": "ddp_mpi.py",
    "horovod/gloo": "horovod_cpu.py",
    # Horovod's own documentation starts one and the same script under horovodrun and under mpirun.
    "horovod/mpi": "horovod_cpu.py",
}
"""By cell, the script that a practitioner would write."""


Blocks = dict[str, NDArray[np.float64]]
"""Block seconds of the slowest rank in one launch, by side, shape (rounds,)."""


@dataclass(frozen=True)
class Model:
    """A model that is compared, and what must hold."""

    config: str
    """Its file in conf/model/."""
    block_steps: int
    rounds: int
    """Even, so that each side is first as often as the other. Enough for the launch to be more than its start: steps of
    one launch differ so much (two ranks on two cores: 20 % for ResNet-18) that rounds sharpen it at the least cost."""
    most_off: float
    """Bar of the point estimate, as a share of 1."""
    most_high: float
    """Bar of the upper end of the interval."""

    def half_width(self, first: int) -> float:
        """Of an interval planned by `first` launches, as a difference of logarithms: the widest with which a pair of
        equal speed holds both bars with probability stats.LEVEL."""
        # Stein (1945): the mean of all, in units of half ÷ quantile, has Student's t with first − 1 degrees of freedom.
        t = distributions.t(first - 1)
        quantile, off, high = t.ppf((1 + stats.LEVEL) / 2), math.log1p(self.most_off), math.log1p(self.most_high)

        def missing(half: float) -> float:
            return float(stats.LEVEL - t.cdf(min(off, high - half) * quantile / half) + t.cdf(-off * quantile / half))

        return float(brentq(missing, high * 1e-3, high))


MODELS = {
    "resnet18": Model("resnet18_64", block_steps=1, rounds=96, most_off=0.01, most_high=0.02),
    "mlp": Model("mlp", block_steps=10, rounds=120, most_off=0.03, most_high=0.04),
}


@dataclass(frozen=True)
class Pair:
    """Our case and the script beside it."""

    model: str
    case: Case

    @property
    def script(self) -> Path:
        return HERE / "bare" / SCRIPTS[self.case.cell]

    @property
    def label(self) -> str:
        return f"{self.case.cell.replace('/', '-')}-{self.model}"


def blocks_of(path: Path) -> Blocks:
    """The blocks in a launch's own file."""
    found = json.loads(path.read_text())
    return {side: np.array(blocks).max(axis=1) for side, blocks in found.items()}


class LaunchFailed(Exception):
    """Why a launch gave no numbers, in one line."""


class Bench:
    """Launches pairs, into one folder."""

    def __init__(self, folder: Path, stop: StopFlag) -> None:
        self.folder, self.stop, self.tools = folder, stop, Tools()

    def turns(self, pair: Pair, launch: int, rounds: int) -> Blocks:
        """One launch in which both sides take turns."""
        out = self._place(pair) / str(launch)
        words = ("--rounds", str(rounds), "--launch", str(launch), "--script", str(pair.script), "--model", pair.model)
        self._start(pair, out, ("-m", "benches.checks.turns", *self._case(pair), "--out", str(out), *words))
        return blocks_of(out / TURNS)

    def left(self, pair: Pair) -> list[Blocks]:
        """What an earlier run left of a pair: its launches up to the first that gave no numbers."""
        paths = (self._place(pair) / str(launch) / TURNS for launch in itertools.count())
        return [blocks_of(path) for path in itertools.takewhile(Path.exists, paths)]

    def ours_alone(self, pair: Pair) -> float:
        """Peak memory of our worker, of the rank that has most, in MiB."""
        out = self._place(pair) / "ours-alone"
        self._start(pair, out, ("-m", "benches.worker", *self._case(pair), "--out", str(out), "--rounds", "1"))
        return max(record.read(out).peak_memory_mb)

    def theirs_alone(self, pair: Pair) -> float:
        """Peak memory of the script, of the rank that has most, in MiB."""
        out = self._place(pair) / "theirs-alone"
        self._start(pair, out, (str(HERE / "alone.py"), str(out), str(pair.script), pair.model))
        peaks = [float(path.read_text()) for path in out.glob("peak*")]
        if len(peaks) != pair.case.cluster.world_size:
            raise LaunchFailed(f"{len(peaks)} peaks of memory from {pair.case.cluster.world_size} ranks")
        return max(peaks)

    def _place(self, pair: Pair) -> Path:
        return self.folder / pair.label

    def _case(self, pair: Pair) -> tuple[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{pair.label}.yaml"
        path.write_text(dump(pair.case))
        return (str(path),)

    def _start(self, pair: Pair, out: Path, args: tuple[str, ...]) -> None:
        """Run one set of ranks to its end. Raises LaunchFailed, or KeyboardInterrupt where it was interrupted."""
        if out.exists():
            # An earlier run left it without numbers.
            out.rename(out.with_name(f"{out.name}-{secrets.token_hex(4)}"))
        out.mkdir(parents=True)
        command = driver.start_ranks(pair.case, args, self.tools)
        (out / "command.sh").write_text(command.text() + "\n")
        log = out / "logs" / "launcher.log"
        outcome = run(command, log=log, limit_s=LIMIT_S, token=secrets.token_hex(8), stop=self.stop)
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status != "ok":
            # A launch that is ended for its time has ranks that were killed, which is not the cause.
            rank = failed_rank(out) if outcome.status == "failed" else None
            raise LaunchFailed(f"{rank or outcome.reason}; see {log}")


@dataclass(frozen=True)
class Row:
    """What was found of one pair."""

    pair: Pair
    step_s: float
    """Theirs: median over launches and rounds."""
    ratio: Estimate
    """Our step time ÷ theirs."""
    memory_mb: tuple[float, float]
    """Ours and theirs."""

    def faults(self) -> list[str]:
        """What does not hold, in words."""
        model, ratio, (ours, theirs) = MODELS[self.pair.model], self.ratio, self.memory_mb
        edge = 1 + model.most_off
        found = {
            f"ratio beyond {model.most_off:.0%}": not 1 / edge <= ratio.value <= edge,
            f"high end not below {model.most_high:.0%}": not ratio.high < 1 + model.most_high,
            f"memory beyond {MOST_MEMORY_MB:.0f} MiB": not abs(ours - theirs) <= MOST_MEMORY_MB,
        }
        return [text for text, holds in found.items() if holds]


def make_pair(cell: str, model: str) -> Pair:
    """The pair of one cell and model. Raises UserError."""
    engine, _, transport = cell.partition("/")
    ranks = 1 if engine == "local" else 2
    words = [f"model={MODELS[model].config}", f"engine={engine}", "device=cpu", f"cluster.ranks_per_node={ranks}"]
    words += [f"transport={transport}"] if transport else []
    words += [f"block_steps={MODELS[model].block_steps}", f"limit_s={LIMIT_S}"]
    return Pair(model, compose(words).study.contestants[0].case)


class Launches:
    """What pairs gave so far, in an earlier run too: the blocks of each launch, or why there are none.

    Raises UserError where the earlier run's launches are not like these.
    """

    def __init__(self, bench: Bench, pairs: list[Pair], share: float) -> None:
        self.bench, self.pairs, self.share = bench, pairs, share
        self.found = {pair.label: self._left(pair) for pair in pairs}
        self.failed: dict[str, str] = {}

    def extend(self, wanted: Mapping[str, int]) -> None:
        """Start launches until each pair has as many as wanted, by label; a pair that failed gets no more."""
        # Launches outermost, so that a slow drift of the machine meets all pairs alike.
        for launch in range(max(wanted.values())):
            for pair in self.pairs:
                due = len(self.found[pair.label]) == launch < wanted[pair.label]
                if due and pair.label not in self.failed:
                    self._start(pair, launch, wanted[pair.label])

    def planned(self, pair: Pair, first: int, most: int) -> int:
        """Launches with which the interval is narrow enough by the `first`; no fewer than those, up to `most`."""
        early = self.found[pair.label][:first]
        # One launch has no interval to plan from, and of a pair that failed there are fewer.
        if not 2 <= first <= len(early) or most <= first:
            return first
        half = MODELS[pair.model].half_width(first)
        return min(stats.launches_in_two_stages(ratio_of(early, first), half), most)

    def _rounds(self, pair: Pair) -> int:
        return max(2, 2 * round(MODELS[pair.model].rounds * self.share / 2))

    def _left(self, pair: Pair) -> list[Blocks]:
        found = self.bench.left(pair)
        if wrong := {len(blocks) for launch in found for blocks in launch.values()} - {self._rounds(pair)}:
            text = f"launches of {', '.join(map(str, sorted(wrong)))} rounds, these have {self._rounds(pair)}"
            raise UserError(f"{self.bench.folder}: {pair.label} has {text}; start anew")
        return found

    def _start(self, pair: Pair, launch: int, wanted: int) -> None:
        try:
            blocks = self.bench.turns(pair, launch, self._rounds(pair))
        except LaunchFailed as error:
            self.failed[pair.label] = str(error)
            return
        self.found[pair.label].append(blocks)
        told = float(np.exp(np.mean(np.log(blocks["ours"] / blocks["theirs"]))))
        print(f"launch {launch + 1} of {wanted}, {pair.label}: {told:.4f}", file=sys.stderr, flush=True)


def measure(
    bench: Bench, pairs: list[Pair], launches: int, share: float, most: int
) -> Iterator[Row | tuple[Pair, str]]:
    """Launch all and give each pair's row, or why there is none.

    launches: of each pair at first. share: of the rounds of a full launch. most: launches of a pair whose interval is
    too wide after the first; no more than `launches` adds none.
    """
    done = Launches(bench, pairs, share)
    done.extend({pair.label: launches for pair in pairs})
    done.extend({pair.label: done.planned(pair, launches, most) for pair in pairs})
    for pair in pairs:
        if pair.label in done.failed:
            yield pair, done.failed[pair.label]
            continue
        try:
            yield row(pair, done.found[pair.label], launches, (bench.ours_alone(pair), bench.theirs_alone(pair)))
        except LaunchFailed as error:
            yield pair, str(error)


def ratio_of(launches: list[Blocks], first: int) -> Estimate:
    """Our step time ÷ theirs. first: launches by which the number of all was planned."""
    ours, theirs = (np.array([blocks[side] for blocks in launches]) for side in ("ours", "theirs"))
    logs = stats.log_ratios(ours, theirs)
    return stats.ratio_in_two_stages(logs, first) if len(logs) > first else stats.ratio_of_pairs(logs)


def row(pair: Pair, launches: list[Blocks], first: int, memory_mb: tuple[float, float]) -> Row:
    """Reduce the blocks of a pair's launches; first: launches by which their number was planned."""
    theirs = np.array([blocks["theirs"] for blocks in launches])
    step_s = float(np.median(theirs)) / pair.case.block_steps
    return Row(pair, step_s, ratio_of(launches, first), memory_mb)


COLUMNS = "{:13} {:9} {:>8} {:>2} {:>7} {:>16} {:>15} {:>7}  {}"


def show(one: Row | tuple[Pair, str]) -> str:
    """One line of the table."""
    if not isinstance(one, Row):
        pair, reason = one
        return COLUMNS.format(pair.case.cell, pair.model, "", "", "", "", "", "", f"failed: {reason}")
    ratio, (ours, theirs) = one.ratio, one.memory_mb
    interval = f"{ratio.low:.4f} – {ratio.high:.4f}"
    memory = f"{ours:.0f} – {theirs:.0f}"
    step = f"{one.step_s * 1e3:.2f}"
    cells = (one.pair.case.cell, one.pair.model, step, ratio.n, f"{ratio.value:.4f}", interval, memory)
    return COLUMNS.format(*cells, f"{ours - theirs:+.0f}", "; ".join(one.faults()) or "holds")


def header() -> str:
    """The table's first line; ratio: our step time ÷ theirs, memory: peak of ours – theirs, in MiB."""
    return COLUMNS.format(
        "cell", "model", "ms/step", "n", "ratio", "95 % interval", "MiB ours–theirs", "diff", "verdict"
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line. Raises SystemExit with status 2 for what it does not know."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.checks.fidelity", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a try: two launches, half the rounds")
    first = f"of each pair at first (default: {LAUNCHES}, quick: {LAUNCHES_QUICK})"
    parser.add_argument("--launches", type=int, help=first)
    wide = f"of a pair whose interval is then too wide (default: {MOST_LAUNCHES}, quick: those at first)"
    parser.add_argument("--most", type=int, help=wide)
    parser.add_argument("--cells", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="go on with what an earlier run left there")
    parser.add_argument("--results", type=Path, default=Path("results/runs"), help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.launches is None:
        options.launches = LAUNCHES_QUICK if options.quick else LAUNCHES
    if options.most is None:
        options.most = options.launches if options.quick else MOST_LAUNCHES
    for name in ("launches", "most"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}={getattr(options, name)}: at least one launch is needed")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Exit status: 0 all holds (or a mere try), 1 something does not, 2 a mistake, 130 interrupted."""
    options = parse(arguments)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
    folder = (options.records or options.results / f"fidelity-{stamp}").absolute()
    try:
        if options.records and not folder.is_dir():
            raise UserError(f"--records {options.records}: no such folder")
        pairs = [make_pair(cell, model) for cell in options.cells for model in options.models]
        with machine_lock("fidelity") as others, interrupts() as stop:
            for other in others:
                print(f"warning: study {other.study} runs on this machine; each disturbs the other", file=sys.stderr)
            share = 0.5 if options.quick else 1.0
            rows = list(measure(Bench(folder, stop), pairs, options.launches, share, options.most))
    except UserError as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fidelity: interrupted", file=sys.stderr)
        return 130
    print(header(), *map(show, rows), f"raw seconds: {folder}", sep="\n")
    bad = any(not isinstance(one, Row) or one.faults() for one in rows)
    return 1 if bad and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
