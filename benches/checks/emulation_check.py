"""`make emulation-check`: does an emulated model take the time of the real one that it was profiled from?

Before each launch ResNet-18 is profiled on this CPU, in RUNS fresh processes, by the command that a user types; then
the real and the emulated model meet in a duel, each in one process. So a drift of the machine hits all alike: over the
minutes of a study it may be larger than what is allowed. Step times must agree within MOST_OFF over all launches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from analysis import stats
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
LAUNCHES = 6
RUNS = 2
LIMIT_S = 3600.0


def contestant(name: str, *words: str) -> Contestant:
    """One process of a model. Raises UserError."""
    found = compose([*words, f"block_steps={BLOCK_STEPS}"]).study.contestants[0]
    return msgspec.structs.replace(found, name=name)


def pair(profile: Path) -> list[Contestant]:
    """The real model and the emulated one."""
    emulated = ("model=emulated", f"model.kwargs.profile={profile}", *MODEL[1:])
    return [contestant("real", *MODEL), contestant("emulated", *emulated)]


def profiled(path: Path) -> Profile:
    """The model's profile over RUNS processes, written to `path`. Raises UserError."""
    found = merged([measure_apart(list(MODEL), None) for _ in range(RUNS)])
    path.write_text(text_of(found))
    return found


@dataclass(frozen=True)
class Launch:
    """One launch of both models, and the profile that the emulated one had."""

    profile: Profile
    real: NDArray[np.float64]
    """Step times of its blocks, in seconds."""
    emulated: NDArray[np.float64]


def launch(number: int, rounds: int, folder: Path, stop: StopFlag) -> Launch | None:
    """Profile, then duel; None where one of the two did not end well. Raises UserError."""
    path = folder / f"resnet18-{number}.yaml"
    profile = profiled(path)
    say(f"launch {number}: profiled at {profile.step_s * 1e3:.1f} ms a step")
    study = make_study(f"duel-{number}", pair(path), launches=1, rounds=rounds)
    times = complete(step_times(run_study(study, folder, stop)))
    return Launch(profile, *times[:, 0]) if times.shape[1] else None


def lines(found: Sequence[Launch]) -> list[Line]:
    """What was measured and whether it agrees."""
    times = {
        "profile": [one.profile.step_s for one in found],
        "real": [float(np.median(one.real)) for one in found],
        "emulated": [float(np.median(one.emulated)) for one in found],
    }
    bar = f"within {MOST_OFF:.0%} of 1"
    if not found:
        return [Line("emulated ÷ real", 0, "", "", bar, False)]
    shown = [Line(f"{name}: a step", len(found), _spread(own)) for name, own in times.items()]
    # What the emulation adds by itself, and what the machine did between profile and launch.
    for name in ("emulated", "real"):
        against = stats.ratio_of_pairs(np.log(times[name]) - np.log(times["profile"]))
        shown.append(ratio_line(f"{name} ÷ profile", against, "", None))
    ratio = stats.ratio_of_pairs([float(stats.log_ratios(one.emulated[None], one.real[None])[0]) for one in found])
    return [*shown, ratio_line("emulated ÷ real", ratio, bar, abs(ratio.value - 1) <= MOST_OFF)]


def _spread(seconds: Sequence[float]) -> str:
    """Median and range in milliseconds."""
    middle, low, high = (1e3 * float(f(seconds)) for f in (np.median, min, max))
    return f"{middle:.1f} ms ({low:.1f}–{high:.1f})"


def check(options: argparse.Namespace, folder: Path, stop: StopFlag) -> list[Line]:
    """Every launch in turn, and the judgement."""
    folder.mkdir(parents=True)
    found = []
    for number in range(1, options.launches + 1):
        if not stop.is_set():
            found.append(launch(number, options.rounds, folder, stop))
    return lines([one for one in found if one is not None])


def main(arguments: list[str] | None = None) -> int:
    """Exit status: see `duels.main`."""
    parser = duels.parser("emulation_check", __doc__)
    parser.add_argument("--launches", type=int, default=LAUNCHES, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each in a launch (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.quick:
        options.launches, options.rounds = 1, 1
    return duels.main("emulation-check", options, LIMIT_S, lambda folder, stop: check(options, folder, stop))


if __name__ == "__main__":
    sys.exit(main())
