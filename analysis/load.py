"""What the hosts of a launch did besides it, from Header.load: shares of their cores, clock in MHz, power in W."""

from __future__ import annotations

import statistics
from collections import defaultdict

from benches.record import Header, Load

SHARES = ("foreign_share", "steal_share", "mhz", "gpu_strangers", "gpu_held_share")
TICK_S = 0.01
"""Linux counts CPU time in these."""


def shares(header: Header, cpus: float | None) -> dict[str, float | None]:
    """`foreign_share` and `steal_share`: CPU time of other processes and of other guests of the same machine during the
    blocks ÷ that of all cores of the host, on the worst host; `mhz`: mean clock over blocks and hosts;
    `gpu_strangers`: processes on a rank's GPU beyond those that were alive together with it, at most; `gpu_held_share`:
    share of the blocks in which power or heat held the worst GPU's clock down.

    None where the record does not say. cpus: cores of a host. busy_s, and so what is foreign, counts the whole host:
    all ranks there saw the same, and each tells its own share.
    """
    found: dict[str, float | None] = dict.fromkeys(SHARES)
    clocks = [load.mhz for loads in header.load for load in loads if load.mhz is not None]
    if clocks:
        found["mhz"] = statistics.fmean(clocks)
    found |= _gpus(header)
    hosts = [_host(ranks) for ranks in _by_host(header).values()]
    if cpus and hosts:
        found["foreign_share"] = max(foreign for foreign, _ in hosts) / cpus
        found["steal_share"] = max(steal for _, steal in hosts) / cpus
    return found


def _gpus(header: Header) -> dict[str, float]:
    every = [load for loads in header.load for load in loads]
    counts = [load.gpu_processes for load in every if load.gpu_processes is not None]
    held = [loads for loads in header.load if loads and all(load.gpu_held_back_s is not None for load in loads)]
    found = {"gpu_strangers": float(max(max(counts) - 1 - len(header.beside), 0))} if counts else {}
    if held:
        found["gpu_held_share"] = max(
            sum(load.gpu_held_back_s or 0.0 for load in loads) / sum(load.wall_s for load in loads) for loads in held
        )
    return found


def power_w(header: Header) -> float | None:
    """Mean power during the blocks: of all ranks' GPUs, or of the processor packages of their hosts, each counted once.

    Energy ÷ time of the blocks, untimed steps and barriers included. None where a rank has no counter.
    """
    if not header.load or any(load.energy_j is None for loads in header.load for load in loads):
        return None
    ranks = [[loads] for loads in header.load if loads]
    parts = ranks if header.case.device == "cuda" else list(_by_host(header).values())
    return sum(statistics.fmean(map(_power_w, part)) for part in parts) if parts else None


def _power_w(loads: list[Load]) -> float:
    return sum(load.energy_j or 0.0 for load in loads) / sum(load.wall_s for load in loads)


def _by_host(header: Header) -> dict[object, list[list[Load]]]:
    """Loads of the ranks of each host; ranks whose host is not recorded are taken in blocks of ranks_per_node."""
    if header.case.cluster.name == "virtual":
        # All nodes are one machine, whose every process each of them sees.
        every = [loads for loads in header.load if loads]
        return {None: every} if every else {}
    ranks = header.provenance.get("ranks")
    named = ranks if isinstance(ranks, list) and len(ranks) == len(header.load) else []
    hosts: dict[object, list[list[Load]]] = defaultdict(list)
    for number, loads in enumerate(header.load):
        known = named[number].get("host") if named and isinstance(named[number], dict) else None
        if loads:
            hosts[known or number // header.case.cluster.ranks_per_node].append(loads)
    return hosts


def _host(ranks: list[list[Load]]) -> tuple[float, float]:
    """Cores that others and other guests took on one host, over all blocks of the launch; what the rounding of CPU
    times may have added to the former is taken off: a tick a block for the host and for each rank."""
    wall, busy, steal = (
        statistics.fmean(sum(getattr(load, name) for load in loads) for loads in ranks)
        for name in ("wall_s", "busy_s", "steal_s")
    )
    own = sum(load.own_s + TICK_S for loads in ranks for load in loads) + TICK_S * len(ranks[0])
    return (max(busy - steal - own, 0.0) / wall, steal / wall) if wall > 0 else (0.0, 0.0)
