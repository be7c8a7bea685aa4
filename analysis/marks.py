"""Marks: what a reader must know of a row before its number; it carries them in every table and figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pandas as pd

from analysis import stats
from benches.record import Header, Load
from benches.spec import Case

MOST_LATE, MOST_BUSY = 0.05, 0.8
"""Shares of a step and of the host's cores from which on the host, not the emulated accelerator, sets the time."""

HOST_BOUND = "host-bound"

MEANINGS = {
    "provisional": f"fewer than {stats.PROVISIONAL_BELOW} launches",
    "oversubscribed": "ranks × threads exceed the cores of a host",
    "lossy": "gradients lose digits on their way (fp16, bf16) or travel as low-rank products (powersgd)",
    "our-hook": "gradients go through a Python hook of ours; ddp.through_hook=true over gloo measures its cost",
    "emulated": "layers sleep for the times of a profile instead of computing",
    "virtual": "nodes are network namespaces of one machine",
    HOST_BOUND: (
        f"this machine is the limit, not what it stands for: layers over {MOST_LATE * 100:g} % of a step late, cores "
        f"over {MOST_BUSY * 100:g} % busy, or links slower than asked"
    ),
}
APART = frozenset({"emulated", "virtual"})
"""Rows with such a mark are compared only with rows that carry it too."""


def marks(case: Case, cpus: float, launches: int, host_bound: bool = False) -> tuple[str, ...]:
    """Marks of a contestant, in the order of MEANINGS.

    cpus: cores of a host, NaN where no record says. launches: sound ones. host_bound: as `host_bound` says of them.
    """
    threads = case.cluster.ranks_on_a_machine * case.cluster.threads_per_rank
    holds = {
        "provisional": 0 < launches < stats.PROVISIONAL_BELOW,
        "oversubscribed": threads > cpus,
        "lossy": case.lossy is not None,
        "our-hook": case.our_hook,
        "emulated": case.model.emulated,
        "virtual": case.cluster.name == "virtual",
        HOST_BOUND: host_bound,
    }
    return tuple(mark for mark in MEANINGS if holds[mark])


def of_launches(case: Case, launches: pd.DataFrame) -> tuple[str, ...]:
    """Marks of a contestant by its rows of `Records.launches`; host-bound where half of the sound ones were."""
    sound = launches[launches["usable"]]
    return marks(case, launches["cpus"].min(), len(sound), bool(sound["host_bound"].mean() >= 0.5))


def is_host_bound(carried: str) -> bool:
    """Whether a row with these marks (space between) tells of the host, and so is left out of fits."""
    return HOST_BOUND in carried.split()


def no_spare_core(case: Case, cpus: float) -> bool:
    """Whether ranks that communicate have less than two cores each, so that communication takes time from compute."""
    return case.cluster.world_size > 1 and cpus < 2 * case.cluster.ranks_on_a_machine


def host_bound(header: Header, cpus: float | None, step_s: float | None) -> bool:
    """Whether the host set the time of a launch on emulated accelerators or virtual nodes.

    cpus: cores of a host, step_s: its time of a step; None where the record does not say.
    """
    site = header.provenance.get("site") or {}
    if site.get("short"):
        return True
    if not header.case.model.emulated:
        return False
    late = max(_lateness(header), default=0.0)
    busy = max(map(_busy, filter(None, header.load)), default=0.0)
    return bool((step_s and late > MOST_LATE * step_s) or (cpus and busy > MOST_BUSY * cpus))


def _busy(loads: list[Load]) -> float:
    """Cores that were busy, over all blocks."""
    wall_s = sum(load.wall_s for load in loads)
    return sum(load.busy_s for load in loads) / wall_s if wall_s > 0 else 0.0


def _lateness(header: Header) -> Iterator[float]:
    """Median of each rank, in seconds a step."""
    for rank in header.provenance.get("ranks") or []:
        if rank.get("lateness_s"):
            yield statistics.median(rank["lateness_s"])
