"""`make parking`: does a parked contestant survive, cost nothing and disturb nobody? Nearly half an hour.

(a) All cells of the CPU, alive together, are parked for 1, 40 and 120 s, with a block before, between and after.
(b) In the second of these parks: CPU time of all processes of each launch over 30 s.
(c) A contestant alone, then beside the three others, started and parked half-way, then alone again once they are ended:
    by launch the difference of log step time, middle phase less the mean of the outer two, so that a steady drift
    cancels. The middle phase has as many blocks as both outer ones. While it has company it is itself parked between
    its blocks, as in any duel; the first block of each phase, just behind start-ups, is left out. It is ResNet-18 over
    DDP/gloo, whose steps differ by some 5 %; those of the MLP differ by half, and 2 % of them take far longer to see.
(d) In an ordinary duel of all cells, of the MLP and of ResNet-18: the first timed step behind each park against the
    rest of its block, each step as its slowest rank saw it, in logarithms. Steps of the MLP over gloo take 2, 4 or 6 ms
    by chance, so means are compared: a median of the rest would not be what an equal first step comes to.
(c) and (d) are t intervals over launches, (c) on a location of each launch that spikes do not move (analysis.stats).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from numpy.typing import NDArray

from analysis import stats, table
from analysis.estimate import Estimate
from benches import record
from benches.checks import duels
from benches.checks.duels import Line
from benches.control import PING_S, Control
from benches.driver import cores
from benches.folder import StudyFolder, open_study
from benches.heat import Entry, Heat
from benches.schedule import Turn
from launchers.processes import members
from launchers.supervise import StopFlag

MOST_SHARE = 0.005
"""Of one core, for all processes of a parked contestant together."""
LEAST_LAUNCHES = 6
"""Of (c) and (d); fewer fail."""
MOST_OFF = 0.02
"""Bar of (c), for the whole interval."""
FIRST = {"mlp": (20, 80), "resnet18_64": (5, 8)}
"""Models of (d), the steps of their blocks, no more than in the studies that ship, and how many blocks. Single steps of
the MLP over gloo differ by half: of eight launches 80 first ones each are known to about 4 %."""
BESIDE = ("resnet18_64", 5)
"""Model of (c), and the steps of its blocks."""
MOST_FIRST = 0.10
"""Bar of (d), for the whole interval. A tenth of one step is 0.5 % of a block of 20, the finest margin that we claim,
and 2 % of one of 5, the default margin."""
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Plan:
    """How much of it."""

    parks_s: tuple[float, ...] = (1.0, 40.0, 120.0)
    measured_park: int = 1
    """In which of them CPU time is measured."""
    window_s: float = 30.0
    launches: int = 8
    outer: int = 7
    """Blocks of each outer phase of (c), the first of which does not count."""
    most_rounds: int = 80
    """Of (d)."""


QUICK = Plan(parks_s=(1.0, 8.0), window_s=5.0, launches=2, outer=3, most_rounds=3)


def survive(folder: Path, plan: Plan, stop: StopFlag) -> list[Line]:
    """(a) and (b)."""
    contestants = [duels.contestant(cell) for cell in duels.CELLS]
    study = duels.make_study("survive", contestants, launches=1, rounds=len(plan.parks_s) + 1)
    study_folder = open_study(study, folder)
    shares: dict[str, float] = {}
    with Control() as control, Heat(control, duels.Told(), stop) as heat:
        left_out = heat.start([Turn(one, 0) for one in contestants], duels.maker(study_folder, control), cores())
        every = range(len(heat.entries))
        heat.run([every])
        for number, park_s in enumerate(plan.parks_s):
            duels.say(f"all are parked for {park_s:g} s")
            until = time.monotonic() + park_s
            if number == plan.measured_park:
                shares = cpu_shares(control, heat.entries, plan.window_s, stop)
            hold(control, until, stop)
            heat.run([every])
        heat.finish()
    lines = [_survived(study_folder, Turn(one, 0), plan.parks_s) for one in contestants]
    lines += [Line(f"(a) {turn.contestant.name}", 0, "no memory for it", "", "", False) for turn in left_out]
    return [*lines, *(_share(cell, share) for cell, share in shares.items())]


def hold(control: Control, until: float, stop: StopFlag) -> None:
    """Let time pass as the driver does between blocks: the agents' leases are renewed, and nothing else."""
    while (left := until - time.monotonic()) > 0 and not stop.is_set():
        control.ping()
        time.sleep(min(left, PING_S))


def cpu_shares(control: Control, entries: Sequence[Entry], window_s: float, stop: StopFlag) -> dict[str, float]:
    """By contestant, CPU time of all its processes ÷ wall time, while it is parked."""
    start, before = time.monotonic(), [cpu_s(entry) for entry in entries]
    hold(control, start + window_s, stop)
    took, after = time.monotonic() - start, [cpu_s(entry) for entry in entries]
    names = [entry.turn.contestant.name for entry in entries]
    return {name: (b - a) / took for name, a, b in zip(names, before, after, strict=True)}


def cpu_s(entry: Entry) -> float:
    """CPU time that the processes of a launch have used: launcher, agents and ranks."""
    times = [psutil.Process(pid).cpu_times() for pid in members(entry.launch.token)]
    return sum(one.user + one.system for one in times)


def _survived(folder: StudyFolder, turn: Turn, parks_s: Sequence[float]) -> Line:
    what, bar = f"(a) {turn.contestant.name} survives", f"parks of {', '.join(f'{s:g}' for s in parks_s)} s"
    if not folder.has_record(turn.contestant, turn.launch):
        return Line(what, 0, "no record", "", bar, False)
    header = record.read(folder.launch(turn.contestant, turn.launch))
    parked = [block.parked_s for block in header.blocks[1:]]
    found = ", ".join(f"{seconds:.0f}" for seconds in parked) if header.status == "ok" else str(header.reason)
    return Line(what, 1, found, "", bar, outlived(header.status, parked, parks_s))


def outlived(status: str, parked: Sequence[float], parks_s: Sequence[float]) -> bool:
    """Whether a launch ended well and was parked for so long before each block."""
    enough = len(parked) == len(parks_s) and all(a >= b for a, b in zip(parked, parks_s, strict=True))
    return status == "ok" and enough


def _share(cell: str, share: float) -> Line:
    bar = f"under {MOST_SHARE:.1%} of a core"
    return Line(f"(b) {cell} parked", 1, f"{share:.2%}", "", bar, share < MOST_SHARE)


def beside(folder: Path, plan: Plan, stop: StopFlag) -> list[Line]:
    """(c)."""
    model, block_steps = BESIDE
    contestants = [duels.contestant(cell, model, block_steps) for cell in duels.CELLS]
    study = duels.make_study("beside", contestants, launches=plan.launches, rounds=4 * plan.outer)
    study_folder = open_study(study, folder)
    kept: list[int] = []
    with Control() as control:
        for launch in range(plan.launches):
            if not stop.is_set():
                duels.say(f"alone, beside three, alone: launch {launch + 1} of {plan.launches}")
                turns = [Turn(one, launch) for one in contestants]
                kept += [launch] if _phases(study_folder, control, turns, plan.outer, stop) else []
    times = duels.step_times(study_folder.path)[0]
    values = company(times[[launch for launch in kept if launch < len(times)]], plan.outer)
    bar = f"within ±{MOST_OFF:.0%}"
    what = f"(c) {model}, {contestants[0].name} beside three ÷ alone"
    return [_judged(what, values, bar, MOST_OFF)]


def _phases(folder: StudyFolder, control: Control, turns: Sequence[Turn], outer: int, stop: StopFlag) -> bool:
    """One launch of (c); whether the others were there, and stopped, to the end of the middle phase."""
    make = duels.maker(folder, control)
    with Heat(control, duels.Told(), stop) as heat:
        heat.start(turns[:1], make, cores())
        heat.run([[0]] * outer)
        heat.start(turns[1:], make, cores())
        heat.run([[0]] * (2 * outer))
        kept_company = len(heat.entries) == len(turns) and all(entry.stopped for entry in heat.entries[1:])
        for entry in heat.entries[1:]:
            entry.launch.close()
        heat.run([[0]] * outer)
        heat.finish()
    return kept_company


def company(times: NDArray[np.float64], outer: int) -> NDArray[np.float64]:
    """Of each launch, log(step time beside others ÷ alone); times: shape (launches, 4 · outer), NaN: not measured."""
    if times.shape[1] != 4 * outer:
        return np.array([])
    phases = np.split(np.log(times), [outer, 3 * outer], axis=1)
    before, between, after = (stats.hodges_lehmann(phase[:, 1:]) for phase in phases)
    found = between - (before + after) / 2
    return found[~np.isnan(found)]


def first_steps(folder: Path, plan: Plan, stop: StopFlag) -> list[Line]:
    """(d)."""
    return [line for model in FIRST if not stop.is_set() for line in first_steps_of(model, folder, plan, stop)]


def first_steps_of(model: str, folder: Path, plan: Plan, stop: StopFlag) -> list[Line]:
    """(d) of one model."""
    block_steps, rounds = FIRST[model]
    contestants = [duels.contestant(cell, model, block_steps) for cell in duels.CELLS]
    blocks = {"rounds": min(rounds, plan.most_rounds)}
    study = duels.make_study(f"first-steps-{model}", contestants, launches=plan.launches, **blocks)
    path = duels.run_study(study, folder, stop)
    bar = f"within ±{MOST_FIRST:.0%}"
    lines = []
    for key, one in zip(table.read(path).keys, contestants, strict=True):
        folders = [path / "launches" / key / str(launch) for launch in range(plan.launches)]
        found = [of_launch(out) for out in folders if (out / record.SAMPLES).exists()]
        lines.append(_judged(f"(d) {model}, {one.name}: first step ÷ rest", np.array(found), bar, MOST_FIRST))
    return lines


def of_launch(out: Path) -> float:
    """Mean log(first step ÷ rest) of one launch."""
    parked = [number for number, block in enumerate(record.read(out).blocks) if block.parked_s > 0]
    return float(resumed(record.read_samples(out).to_pandas(), parked).mean())


def resumed(samples: pd.DataFrame, parked: Sequence[int]) -> NDArray[np.float64]:
    """Of each block that followed a park, log(first step) - mean log(rest), steps of their slowest rank: 0 on average
    where the first is as the rest, whatever the distribution."""
    steps = samples[(samples["kind"] == "step") & samples["block"].isin(list(parked))]
    seconds = steps.pivot_table(index="block", columns="step", values="seconds", aggfunc="max").to_numpy(dtype=float)
    logs = np.log(seconds)
    found: NDArray[np.float64] = logs[:, 0] - logs[:, 1:].mean(axis=1)
    return found


def _judged(what: str, values: NDArray[np.float64], bar: str, most: float) -> Line:
    if not len(values):
        return Line(what, 0, "no launch", "", bar, False)
    ratio = stats.ratio_of_pairs(values)
    return duels.ratio_line(what, ratio, bar, len(values) >= LEAST_LAUNCHES and inside(ratio, most))


def inside(ratio: Estimate, most: float) -> bool:
    """Whether the whole interval lies within a factor of 1 + most of 1."""
    return ratio.low >= 1 / (1 + most) and ratio.high <= 1 + most


PARTS = {"survive": survive, "beside": beside, "first": first_steps}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = duels.parser("parking", __doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--launches", type=int, help="of (c) and (d) (default: 8, quick: 2)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the parts and print their table."""
    options = parse(arguments)
    plan = QUICK if options.quick else Plan()
    plan = Plan(**{**vars(plan), "launches": options.launches or plan.launches})

    def body(folder: Path, stop: StopFlag) -> list[Line]:
        return [line for part in options.parts if not stop.is_set() for line in PARTS[part](folder, plan, stop)]

    return duels.main("parking", options, LIMIT_S, body)


if __name__ == "__main__":
    sys.exit(main())
