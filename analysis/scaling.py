"""Efficiency against a named baseline, as a paired ratio over launches. 1 is perfect; it has no unit.

local: the bare model in one process · wrapped_at_1: the same engine, transport and settings at world size 1 ·
smallest: the same at the smallest world size that was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis import stats
from analysis.estimate import Estimate
from analysis.pairing import Pairing
from benches.spec import Case, content_hash, plain

# What a baseline may differ in besides the batch (see `baselines`): the engine, and how ranks are joined and started.
ENGINE_KEYS = ("engine", "transport", "ddp", "horovod")
JOB_KEYS = ("limit_s", "warmup_steps", "block_steps", "allow_oversubscribe")
CLUSTER_KEYS = ("name", "nodes", "ranks_per_node", "launcher", "mpi_yield_when_idle")


def baselines(cases: Mapping[int, Case]) -> dict[int, dict[str, int]]:
    """For each case the keys of its baselines, by name; only those that are among the cases.

    A baseline has the same batch on each rank (weak scaling) or, where there is none, the same global batch (strong).
    """
    kinds = {index: list(_kinds(case)) for index, case in cases.items()}
    homes: dict[tuple[str, str], int] = {}
    for index, case in sorted(cases.items(), key=lambda item: item[1].cluster.world_size):
        for name, kind in kinds[index]:
            if name == "wrapped_at_1":
                homes.setdefault(("smallest", kind), index)
            if case.cluster.world_size == 1 and (name != "local" or case.engine == "local"):
                homes.setdefault((name, kind), index)
    # Strong first, so that weak, which comes later, wins.
    return {index: dict(_homes(homes, kinds[index], index)) for index in cases}


def _homes(homes: Mapping[tuple[str, str], int], kinds: list[tuple[str, str]], index: int) -> Iterator[tuple[str, int]]:
    for name, kind in kinds[::-1]:
        if (name, kind) in homes:
            yield name, homes[name, kind]
        smallest = homes.get(("smallest", kind), index)
        if name == "wrapped_at_1" and smallest != index:
            yield "smallest", smallest


def families(case: Case) -> tuple[str, str, str, str]:
    """What a case has in common with its baselines: local and same engine at equal batch a rank, then at equal batch
    in all."""
    first, second, third, fourth = (kind for _, kind in _kinds(case))
    return first, second, third, fourth


def _kinds(case: Case) -> Iterator[tuple[str, str]]:
    """Names of baselines with what a case and its baseline of that name share; weak scaling before strong."""
    values: dict[str, Any] = plain(case)
    engine = [values.pop(key) for key in ENGINE_KEYS]
    for key in JOB_KEYS:
        del values[key]
    for key in CLUSTER_KEYS:
        del values["cluster"][key]
    for batch in (f"{values['data'].pop('per_rank_batch')} a rank", f"{case.global_batch} in all"):
        yield "local", content_hash([values, batch])
        yield "wrapped_at_1", content_hash([values, batch, engine])


def efficiency(
    pairing: Pairing, cases: Mapping[int, Case], index: int, base: int, level: float = stats.LEVEL
) -> Estimate | None:
    """Throughput a rank ÷ throughput a rank of the baseline `base`; None without a common launch.

    = (step time of the baseline ÷ step time) × (batch a rank ÷ batch a rank of the baseline), which for weak scaling is
    the ratio of step times.
    """
    logs = pairing.of(base, index).logs
    if not len(logs):
        return None
    batch, base_batch = (cases[one].global_batch / cases[one].cluster.world_size for one in (index, base))
    work = batch / base_batch
    return stats.ratio_of_pairs(logs, level).scaled(work, "fraction")
