"""`make bucket-optimum`: a sweep of DDP's bucket size on eight virtual nodes has its optimum inside, found again.

`experiment=bucket_optimum` is run twice from fresh processes. The optimum lies inside where both ends of the sweep are
slower than the best size by more than BEYOND; two sweeps agree where each size that was best is in the other one too
within MARGIN of the best: sizes that are told apart by less are one optimum.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from analysis import marks, table
from benches.checks import duels
from benches.checks.duels import Line, run_study, say
from benches.config import compose
from launchers.supervise import StopFlag

BEYOND = 1.05
MARGIN = 1.02
SWEEPS = 2
LIMIT_S = 3600.0
Sweep = Mapping[float, float]
"""Seconds a step by bucket size in MiB, in the order of sizes."""


def sweep(words: list[str], folder: Path, stop: StopFlag) -> tuple[Sweep, set[str]]:
    """Run the sweep; its step times and the marks of its rows. Raises UserError."""
    resolved = compose([*words, f"study.name={folder.name}"])
    records = table.read(run_study(resolved.study, folder.parent, stop))
    found, carried = {}, set()
    for place, one in enumerate(records.study.contestants):
        own = records.launches[records.launches["contestant"] == place]
        carried |= set(marks.of_launches(one.case, own))
        if own["usable"].any() and one.case.ddp is not None:
            found[float(one.case.ddp.bucket_cap_mb or 0)] = float(own["step_time_s"].median())
    return dict(sorted(found.items())), carried


def inside(found: Sweep) -> bool:
    """Whether both ends are slower than the best by more than BEYOND."""
    times = list(found.values())
    return len(times) > 2 and min(times[0], times[-1]) > BEYOND * min(times)


def agree(one: Sweep, other: Sweep) -> bool:
    """Whether the best size of each is as good as the best in the other."""
    pairs = ((one, other), (other, one))
    return one.keys() == other.keys() and all(
        b[min(a, key=a.__getitem__)] <= MARGIN * min(b.values()) for a, b in pairs
    )


def lines(sweeps: list[tuple[Sweep, set[str]]]) -> list[Line]:
    """Both sweeps, and what they show."""
    shown = []
    for number, (found, carried) in enumerate(sweeps, start=1):
        least = min(found.values(), default=0.0)
        for size, seconds in found.items():
            shown.append(Line(f"sweep {number}: {size:g} MiB", 1, f"{seconds:.3f} s, {seconds / least:.3f} x the best"))
        bar = f"both ends over {BEYOND:g} x the best"
        best = f"{min(found, key=found.__getitem__):g} MiB" if found else "none"
        shown.append(Line(f"sweep {number}: the optimum lies inside", len(found), best, "", bar, inside(found)))
        bound = "host-bound" if marks.HOST_BOUND in carried else "not host-bound"
        shown.append(Line(f"sweep {number}: what sets the time", len(found), bound))
    both = len(sweeps) == SWEEPS and agree(sweeps[0][0], sweeps[1][0])
    shown.append(Line("the sweeps agree on it", len(sweeps), "", "", f"within {MARGIN - 1:.0%}", both))
    return shown


def check(words: list[str], folder: Path, stop: StopFlag) -> list[Line]:
    """Run both sweeps and judge."""
    done = []
    for number in range(SWEEPS):
        if not stop.is_set():
            say(f"sweep {number + 1} of {SWEEPS}")
            done.append(sweep(words, folder / f"sweep-{number + 1}", stop))
    return lines(done)


def main(arguments: list[str] | None = None) -> int:
    """Further words go to the study."""
    parser = duels.parser("bucket_optimum", __doc__)
    parser.add_argument("words", nargs="*", help="key=value, as for `ringduel run`")
    options: argparse.Namespace = parser.parse_args(arguments)
    words = ["experiment=bucket_optimum", *options.words]
    return duels.main("bucket-optimum", options, LIMIT_S, lambda folder, stop: check(words, folder, stop))


if __name__ == "__main__":
    sys.exit(main())
