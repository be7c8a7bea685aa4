"""Marks: what a reader must know of a row before its number; it carries them in every table and figure."""

from __future__ import annotations

from analysis import stats
from benches.spec import Case

MEANINGS = {
    "provisional": f"fewer than {stats.PROVISIONAL_BELOW} launches",
    "oversubscribed": "ranks × threads exceed the cores of a host",
    "lossy": "gradients lose digits on their way (fp16, bf16) or travel as low-rank products (powersgd)",
    "our-hook": "gradients go through a Python hook of ours; ddp.through_hook=true over gloo measures its cost",
    "virtual": "nodes are network namespaces of one machine",
}
APART = frozenset({"virtual"})
"""Rows with such a mark are compared only with rows that carry it too."""


def marks(case: Case, cpus: float, launches: int) -> tuple[str, ...]:
    """Marks of a contestant, in the order of MEANINGS.

    cpus: cores of a host, NaN where no record says. launches: sound ones.
    """
    threads = case.cluster.ranks_per_node * case.cluster.threads_per_rank
    holds = {
        "provisional": 0 < launches < stats.PROVISIONAL_BELOW,
        "oversubscribed": threads > cpus,
        "lossy": case.lossy is not None,
        "our-hook": case.our_hook,
        "virtual": case.cluster.name == "virtual",
    }
    return tuple(mark for mark in MEANINGS if holds[mark])


def no_spare_core(case: Case, cpus: float) -> bool:
    """Whether ranks that communicate have less than two cores each, so that communication takes time from compute."""
    return case.cluster.world_size > 1 and cpus < 2 * case.cluster.ranks_per_node
