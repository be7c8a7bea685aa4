"""`make emulation-check`: does an emulated model take the time of the real one that it was profiled from?

ResNet-18 is profiled on this CPU, in as many fresh processes as there will be launches, by the command that a user
types. Then the real and the emulated model meet in one duel, each in one process: the machine's drift hits both alike.
Their step times must agree within MOST_OFF.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import msgspec
import numpy as np

from analysis import stats
from analysis.estimate import Estimate
from benches.checks import duels
from benches.checks.duels import Line, complete, make_study, ratio_line, run_study, say, step_times
from benches.config import compose
from benches.profile import measure_apart, merged, text_of
from benches.spec import Contestant
from benches.workloads.emulated import Profile
from launchers.supervise import StopFlag

MOST_OFF = 0.03
MODEL = ("model=resnet18", "data.per_rank_batch=2", "device=cpu", "engine=local", "cluster.ranks_per_node=1")
BLOCK_STEPS = 10
LEAST_LAUNCHES = 6
LIMIT_S = 3600.0


def contestant(name: str, *words: str) -> Contestant:
    """One process of a model. Raises UserError."""
    found = compose([*words, f"block_steps={BLOCK_STEPS}"]).study.contestants[0]
    return msgspec.structs.replace(found, name=name)


def pair(profile: Path) -> list[Contestant]:
    """The real model and the emulated one."""
    emulated = ("model=emulated", f"model.kwargs.profile={profile}", *MODEL[1:])
    return [contestant("real", *MODEL), contestant("emulated", *emulated)]


def profiled(runs: int, stop: StopFlag) -> Profile:
    """The model's profile over several processes. Raises UserError."""
    found = []
    for number in range(runs):
        if stop.is_set():
            raise KeyboardInterrupt
        found.append(measure_apart(list(MODEL), None))
        say(f"profile {number + 1} of {runs}: {found[-1].step_s * 1e3:.1f} ms a step")
    return merged(found)


def ratio(folder: Path) -> Estimate | None:
    """Step time of the emulated ÷ that of the real model; None without a launch of both."""
    times = complete(step_times(folder))
    return stats.ratio_of_pairs(stats.log_ratios(times[1], times[0])) if times.shape[1] else None


def lines(profile: Profile, found: Estimate | None, folder: Path) -> list[Line]:
    """What was measured and whether it agrees."""
    real, emulated = (float(np.nanmedian(one)) if one.size else math.nan for one in step_times(folder))
    shown = [
        Line("profile: a step", profile.steps, f"{profile.step_s * 1e3:.1f} ms"),
        Line("real: a step", found.n if found else 0, f"{real * 1e3:.1f} ms"),
        Line("emulated: a step", found.n if found else 0, f"{emulated * 1e3:.1f} ms"),
    ]
    bar = f"within {MOST_OFF:.0%} of 1"
    if found is None:
        return [*shown, Line("emulated ÷ real", 0, "", "", bar, False)]
    return [*shown, ratio_line("emulated ÷ real", found, bar, abs(found.value - 1) <= MOST_OFF)]


def check(options: argparse.Namespace, folder: Path, stop: StopFlag) -> list[Line]:
    """Profile, duel and judge."""
    profile = profiled(options.launches, stop)
    path = folder / "resnet18.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text_of(profile))
    study = make_study("duel", pair(path), launches=options.launches, rounds=options.rounds)
    run_study(study, folder, stop)
    return lines(profile, ratio(folder / "duel"), folder / "duel")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: see `duels.main`."""
    parser = duels.parser("emulation_check", __doc__)
    parser.add_argument("--launches", type=int, default=LEAST_LAUNCHES, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each in a launch (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.quick:
        options.launches, options.rounds = 1, 1
    return duels.main("emulation-check", options, LIMIT_S, lambda folder, stop: check(options, folder, stop))


if __name__ == "__main__":
    sys.exit(main())
