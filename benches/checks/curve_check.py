"""`make curve-check`: does our all-reduce curve over MPI agree with a bare mpi4py loop? A benchmark of Ringduel itself.

Both live in the same ranks and take turns at each size, in balanced order: ours as the workload times it under DDP
over MPI, and a loop around mpi4py's `Allreduce` on MPI_COMM_WORLD. A turn's time is the mean of its all-reduces on the
slowest rank; the ratio of a size is the median over its rounds, of which there are so many that its interval is narrow
against the bar, or `--rounds`. Horovod has no part in it: its cycle comes on top.
"""

from __future__ import annotations

import argparse
import gc
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from benches import driver
from benches.config import compose
from benches.errors import UserError
from benches.spec import Case, dump, load_case
from launchers.lock import machine_lock
from launchers.supervise import interrupts, run
from launchers.tools import Tools

FROM_BYTES = 64 * 2**10
"""Below it a call of Python is no longer small against the message."""
MOST_OFF = 0.05
TURN_S = 0.05
"""About the time of one turn of one side."""
FEWEST = 20
"""Rounds of a size before their interval is looked at."""
MOST_HALF_WIDTH = 0.015
"""Of the 95 % interval of a ratio. Rounds go on until then whatever the ratio is, so that looking biases nothing."""
LIMIT_S = 1200.0
FOUND = "curve.json"
Times = list[tuple[float, float]]
"""Seconds of one all-reduce on the slowest rank: ours and the bare loop's, one pair a round."""


def measure(case: Case, most_mb: float, rounds: int) -> dict[int, Times]:
    """Of one rank, by size; the same on every rank. Collective."""
    import torch

    from benches import engines, loop
    from benches.workloads import allreduce

    torch.set_num_threads(case.cluster.threads_per_rank)
    engine = engines.join(case)
    gc.freeze()  # as in a rank
    try:
        found: dict[int, Times] = {}
        for size in (size for size in allreduce.sizes(most_mb) if size >= FROM_BYTES):
            tensor = torch.zeros(size // 4)
            bare = Bare(tensor.numpy())
            once = loop.slowest(engine, bare.seconds(3))
            count = max(3, round(TURN_S / once))
            found[size] = []
            while len(found[size]) < rounds and not narrow(found[size]):
                number, times = len(found[size]), {}
                for side in ("ours", "bare")[:: 1 if number % 2 == 0 else -1]:
                    own = [bare.seconds(count)] if side == "bare" else allreduce.time_sums(engine, tensor, count)
                    times[side] = loop.slowest(engine, sum(own) / len(own))
                found[size].append((times["ours"], times["bare"]))
        return found
    finally:
        engine.close()


class Bare:
    """The loop that one would write with mpi4py and nothing else. It runs in the very memory in which ours does: from
    2 MiB on, two buffers of one size differ by several per cent, by the pages that they happened to get."""

    def __init__(self, buffer: NDArray[np.float32]) -> None:
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.buffer = buffer

    def seconds(self, count: int) -> float:
        """Seconds of one all-reduce on this rank, the mean of `count`."""
        comm, in_place, buffer = self.mpi.COMM_WORLD, self.mpi.IN_PLACE, self.buffer
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(count):
            comm.Allreduce(in_place, buffer)
        return (time.perf_counter() - start) / count


def interval(times: Times) -> tuple[float, float, float]:
    """Median of ours ÷ bare over the rounds, with the bounds of its 95 % interval: order statistics, whatever the
    distribution (Conover, Practical Nonparametric Statistics, 3rd ed. 1999, section 3.2)."""
    ratios = np.sort([ours / bare for ours, bare in times])
    below = max(int(binom.ppf(0.025, len(ratios), 0.5)) - 1, 0)
    return float(ratios[below]), float(np.median(ratios)), float(ratios[-1 - below])


def narrow(times: Times) -> bool:
    """Whether there are rounds enough."""
    if len(times) < FEWEST:
        return False
    low, _, high = interval(times)
    return (high - low) / 2 <= MOST_HALF_WIDTH


def launch(options: argparse.Namespace, folder: Path) -> dict[int, Times]:
    """Start the ranks and read what they found. Raises UserError where they ended badly."""
    words = ["model=digits", "engine=ddp", "transport=mpi", "device=cpu", f"cluster.ranks_per_node={options.ranks}"]
    case = compose(words).study.contestants[0].case
    (folder / "case.yaml").write_text(dump(case))
    numbers = ("--max-mb", str(options.max_mb), "--rounds", str(options.rounds))
    args = ("-m", "benches.checks.curve_check", "--folder", str(folder), *numbers)
    command = driver.start_ranks(case, args, Tools())
    with machine_lock("curve-check"), interrupts() as stop:
        outcome = run(command, log=folder / "log", limit_s=LIMIT_S, token=secrets.token_hex(8), stop=stop)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    if outcome.status != "ok":
        tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-15:]
        raise UserError("\n".join([f"curve-check: {outcome.reason}", *tail]))
    return {int(size): [(a, b) for a, b in times] for size, times in json.loads((folder / FOUND).read_text()).items()}


def show(found: dict[int, Times]) -> bool:
    """Print the table; whether every size agrees."""
    head = ("bytes", "rounds", "ours, µs", "bare, µs", "ratio", "95 % interval", "10–90 % of rounds")
    print("{:>10} {:>6} {:>12} {:>12} {:>7} {:>15} {:>18}".format(*head))
    agrees = True
    for size, times in found.items():
        ours, bare = np.median(np.array(times), axis=0) * 1e6
        low, ratio, high = interval(times)
        good = abs(ratio - 1) <= MOST_OFF
        agrees &= good
        middle = np.quantile([a / b for a, b in times], [0.1, 0.9])
        sure, spread = (f"{a:.3f} … {b:.3f}" for a, b in ((low, high), middle))
        row = f"{size:>10} {len(times):>6} {ours:>12.1f} {bare:>12.1f} {ratio:>7.3f} {sure:>15} {spread:>18}"
        print(row + ("" if good else "  beyond 5 %"))
    return agrees


def main() -> int:
    """Run the ranks and judge; with --folder, be one of them."""
    parser = argparse.ArgumentParser(prog="make curve-check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--max-mb", type=float, default=256.0, help="largest message (default: %(default)g)")
    parser.add_argument("--rounds", type=int, default=400, help="most turns of each side (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        found = measure(load_case(options.folder / "case.yaml"), options.max_mb, options.rounds)
        (options.folder / FOUND).write_text(json.dumps(found))  # every rank writes the same
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="ringduel-curve-") as folder:
            agrees = show(launch(options, Path(folder)))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print("agrees within 5 % at every size" if agrees else "does not agree within 5 %")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
