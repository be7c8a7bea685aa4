"""`make ring-check`: does the all-reduce of 100 MB on four virtual nodes keep to the bound of its links?

In a ring each node sends and takes in 2(n−1)/n of the bytes (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009:
no all-reduce moves fewer), so none ends before 2(n−1)/n · bytes ÷ rate, with the rate of payload that the slowest node
carried when all sent at once, as the driver tries it at the start. A cell that beats it found a way around its link.
Seconds, bytes, 10**9 bit/s.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benches.checks import duels
from benches.checks.duels import CELLS, Line, say
from benches.clusters import Site
from benches.config import compose
from benches.driver import start_ranks
from benches.errors import UserError
from benches.spec import Case, Study, dump, load_case
from launchers.supervise import StopFlag, run
from launchers.tools import Tools

BYTES = 100_000_000
SUMS = 5
"""Timed, straight one after the other; their mean on the slowest rank is the time of a cell."""
MOST_OVER = 1.15
"""For the best cell."""
LEAST = 0.995
"""A bound beaten by less is no leak: the rate is measured over 1 s, and an idle link may send 0.13 % at once."""
LIMIT_S = 180.0
"""For one cell."""
FOUND = "ring.json"


def measure(case: Case, count: int) -> float:
    """Seconds of one sum of BYTES on the slowest rank, the mean of `count`; the same on every rank. Collective."""
    import torch

    from benches import engines, loop
    from benches.workloads import allreduce

    torch.set_num_threads(case.cluster.threads_per_rank)
    engine = engines.join(case)
    try:
        tensor = torch.empty(BYTES // 4)
        allreduce.fill(tensor, engine.rank)
        engine.summing(tensor)()
        allreduce.check(tensor, engine.rank, engine.world_size)
        # Zeros: sums of sums would overflow.
        tensor.zero_()
        own = allreduce.time_sums(engine, tensor, count)
        return loop.slowest(engine, sum(own) / len(own))
    finally:
        engine.close()


def study_of(options: argparse.Namespace) -> Study:
    """One contestant a cell, for their cases. Raises UserError."""
    shape = [f"cluster.nodes={options.nodes}", f"cluster.link_gbps={options.link_gbps:g}"]
    return compose(["experiment=virtual_scaling", *shape]).study


def launch(case: Case, site: Site, folder: Path, count: int, stop: StopFlag) -> tuple[float, Sequence[float]]:
    """Seconds of a sum in this cell, and what its links carried. Raises UserError where its ranks ended badly."""
    folder.mkdir(parents=True)
    (folder / "case.yaml").write_text(dump(case))
    place = site.place(case)
    args = ("-m", "benches.checks.ring_check", "--folder", str(folder), "--sums", str(count))
    command = start_ranks(case, args, Tools(), place.nodes)
    outcome = run(command, log=folder / "log", limit_s=LIMIT_S, token=secrets.token_hex(8), stop=stop)
    if outcome.status != "ok":
        tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
        raise UserError(f"{case.cell}: {outcome.reason}; {' '.join(tail)}")
    return float(json.loads((folder / FOUND).read_text())), place.facts["carried_gbps"]


def bound(nodes: int, carried_gbps: Sequence[float]) -> float:
    """Seconds that no all-reduce of BYTES can do without."""
    return 2 * (nodes - 1) / nodes * BYTES / (min(carried_gbps) * 1e9 / 8)


def judge(times: Mapping[str, float], least_s: float, sums: int) -> list[Line]:
    """A line for each cell against the bound, and one for the best. times: by cell, of those that ended well."""
    ratios = {cell: seconds / least_s for cell, seconds in times.items()}
    lines = [
        Line(f"{cell}: {times[cell]:.3f} s", sums, f"{ratio:.3f} x the bound", "", "does not beat it", ratio >= LEAST)
        for cell, ratio in ratios.items()
    ]
    if ratios:
        best = min(ratios, key=ratios.__getitem__)
        bar = f"within {MOST_OVER - 1:.0%}"
        lines.append(
            Line(f"best cell: {best}", sums, f"{ratios[best]:.3f} x the bound", "", bar, ratios[best] <= MOST_OVER)
        )
    return lines


def check(options: argparse.Namespace, folder: Path, stop: StopFlag) -> list[Line]:
    """All cells in turn. A cell whose ranks ended badly fails its line."""
    study = study_of(options)
    site = Site(study, say)
    times: dict[str, float] = {}
    failed: list[Line] = []
    least_s = 0.0
    carried: Sequence[float] = ()
    try:
        for case in (one.case for one in study.contestants):
            if stop.is_set():
                break
            say(case.cell)
            try:
                times[case.cell], carried = launch(case, site, folder / case.id, options.sums, stop)
                least_s = bound(options.nodes, carried)
            except UserError as error:
                failed.append(Line(str(error), 0, "no time", "", "", False))
    finally:
        site.close()
    shown = ", ".join(f"{rate:.3f}" for rate in carried)
    head = Line(f"{options.nodes} nodes, {options.link_gbps:g} Gb/s each: carried {shown}", 1, f"bound {least_s:.3f} s")
    return [head, *judge(times, least_s, options.sums), *failed]


def main(arguments: list[str] | None = None) -> int:
    """Run the cells and judge; with --folder, be one rank of one."""
    parser = duels.parser("ring_check", __doc__)
    parser.add_argument("--nodes", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--link-gbps", type=float, default=1.0, help="(default: %(default)g)")
    parser.add_argument("--sums", type=int, default=SUMS, help="timed in each cell (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.folder:
        found = measure(load_case(options.folder / "case.yaml"), options.sums)
        (options.folder / FOUND).write_text(json.dumps(found))  # every rank writes the same
        return 0
    limit_s = LIMIT_S * (len(CELLS) + 1)
    return duels.main("ring-check", options, limit_s, lambda folder, stop: check(options, folder, stop))


if __name__ == "__main__":
    sys.exit(main())
