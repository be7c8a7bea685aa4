"""Which launches a study consists of, in which order, and which of them may be alive together."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benches.spec import Case, Contestant, Study

MOST_ALIVE = 4
"""Launches of one heat: each that waits keeps its model in memory."""


@dataclass(frozen=True)
class Turn:
    """One launch that is due."""

    contestant: Contestant
    launch: int

    @property
    def case(self) -> Case:
        return self.contestant.case


def turns(study: Study) -> Iterator[Turn]:
    """Every launch of the study, in the order in which they run.

    The contestants of a point follow each other, so that a slow drift of the machine hits all alike; their order is
    rotated from launch to launch, so that none always comes first (a Latin square).
    """
    points: dict[str, dict[str, Contestant]] = {}
    for contestant in study.contestants:
        key = json.dumps(contestant.point, sort_keys=True)
        points.setdefault(key, {}).setdefault(contestant.case.id, contestant)
    seen: set[tuple[str, int]] = set()
    for launch in range(study.launches):
        for contestants in points.values():
            row = list(contestants.values())
            shift = launch % len(row)
            for contestant in row[shift:] + row[:shift]:
                if (contestant.case.id, launch) not in seen:
                    seen.add((contestant.case.id, launch))
                    yield Turn(contestant, launch)


def heats(due: Iterable[Turn], cores: int | None = None) -> Iterator[list[Turn]]:
    """Consecutive launches that start up together, since each has its cores to itself; they are timed one by one.

    `cores`: of this host; those that this process may use where it is not given.
    """
    free = cores or len(os.sched_getaffinity(0))
    heat: list[Turn] = []
    used = 0
    for turn in due:
        cluster = turn.case.cluster
        need = cluster.ranks_per_node * cluster.threads_per_rank
        # Launches that share a GPU would share its memory, too.
        alone = turn.case.device == "cuda"
        if heat and (alone or used + need > free or len(heat) == MOST_ALIVE):
            yield heat
            heat, used = [], 0
        heat.append(turn)
        used += need
    if heat:
        yield heat
