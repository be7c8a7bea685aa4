"""The fairness lint: settings in which contestants that meet differ beyond what their study compares.

Pure functions over the cases of a Study, before anything runs; `analysis.fairness` compares what then really happened.

Contestants meet where point and world size are the same. They may differ in
- what a contestant is: engine, transport, and the engine's own settings (`ddp.*`, `horovod.*`, `cuda_graphs`);
- a key that the sub-grids of both sweep, where both have one engine: that key is then what is compared, as in
  `ddp: {precision: [fp32, bf16]}`. Across engines it is not, since two things would then differ at once; the same sweep
  as an axis, `study.axes.precision=[fp32,bf16]`, keeps them apart;
- their interpreter, `python`: versions are then what is compared (`VERSIONS`); that is listed in the result;
- what leaves a step as it is (`HARMLESS`); that is listed in the result.
Every other difference biases the comparison and is refused, unless `study.allow_unfair` names its key or one above it
(`cluster.env` for `cluster.env.NCCL_ALGO`); then it is listed. A key that joins Case later counts as one that biases.

Two settings of DDP are more than its own (`SHARED`): they change the work of a step, and Horovod's counterpart is fixed
or has another name. Across engines they must agree, unless a sub-grid sweeps them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benches.errors import UserError
from benches.explain import flatten, hint_of, nearest_key, show
from benches.spec import Case, Contestant, Study, plain

OWN = ("engine", "transport", "ddp", "horovod", "cuda_graphs")
"""What makes a contestant what it is; Horovod cannot have a CUDA graph."""
HARMLESS = (
    "warmup_steps",
    "block_steps",
    "limit_s",
    "curve_max_mb",
    "trace_messages",
    "allow_oversubscribe",
    "cluster.launcher",
)
"""They change how long is measured, or what starts the ranks, and not what a step does."""
VERSIONS = ("python",)
"""Whoever gives a contestant an interpreter of its own makes versions what is compared; the result lists them."""
SHARED = {"ddp.broadcast_buffers": (), "ddp.comm_hook": ("horovod.compression",)}
"""Settings of DDP with their names under Horovod. Whether a model has buffers, only a rank that built it knows, so one
without them is refused too."""
BY_GROUP = {"model.name": "model", "data.name": "data", "cluster.name": "cluster"}
"""A file is called by its group; `FILES` holds what it brings, which needs no line of its own where files differ."""
FILES = {"model": ("model",), "data": ("data.root", "data.workers")}
SETS = {"model": ("model", "data"), "data.global_batch": ("data.per_rank_batch",)}
"""What a swept key sets besides itself: the file of a model may choose its data and batch."""
POLLING = "cluster.mpi_yield_when_idle"


@dataclass(frozen=True)
class Difference:
    """A key in which contestants that meet differ."""

    key: str
    point: dict[str, Any]
    values: dict[str, Any]
    """Of each contestant that has the key, by its name."""
    pair: tuple[str, str]
    """Two of them between whom the key is not what is compared."""

    @property
    def biases(self) -> bool:
        return self.key not in (*HARMLESS, *VERSIONS)


def refuse(study: Study) -> None:
    """Raise UserError for the first difference that biases and that `study.allow_unfair` does not name."""
    for key in study.allow_unfair:
        try:
            hint_of(key)
        except KeyError:
            raise UserError(f"study.allow_unfair=[{key}]: unknown key; {nearest_key(key)}") from None
    for found in differences(study):
        if found.biases and not allowed(found, study):
            raise UserError(_refusal(found))


def allowed(found: Difference, study: Study) -> bool:
    """Whether the study allows this difference by name."""
    return any(_covers(name, found.key) for name in study.allow_unfair)


def differences(study: Study) -> Iterator[Difference]:
    """One for each key and field of contestants that meet, in the order of the study."""
    for field in meeting(study.contestants):
        facts = {one.name: settings(one.case) for one in field}
        for key in dict.fromkeys(key for found in facts.values() for key in found):
            found = _difference(key, field, facts)
            if found is not None:
                yield found


def meeting(contestants: Sequence[Contestant]) -> list[list[Contestant]]:
    """Contestants of one point and world size, in the order of the study."""
    fields: dict[object, list[Contestant]] = {}
    for one in contestants:
        fields.setdefault((show(one.point), one.case.cluster.world_size), []).append(one)
    return list(fields.values())


def settings(case: Case) -> dict[str, Any]:
    """What contestants must share, by dotted key: all but what makes a contestant what it is."""
    flat = flatten(plain(case), "")
    found = {BY_GROUP.get(key, key): value for key, value in flat.items() if key.split(".")[0] not in OWN}
    if not case.uses_mpi:
        del found[POLLING]
    if case.engine != "local":
        found["ddp.broadcast_buffers"] = case.ddp is not None and case.ddp.broadcast_buffers
        found["ddp.comm_hook"] = case.lossy
    return found


def _difference(key: str, field: Sequence[Contestant], facts: Mapping[str, Mapping[str, Any]]) -> Difference | None:
    """What the field's contestants differ in under this key and do not compare; None where that is nothing."""
    partial = key in SHARED or key == POLLING
    having = [one for one in field if key in facts[one.name] or not partial]
    values = {one.name: facts[one.name].get(key) for one in having}
    if len({show(value) for value in values.values()}) < 2:
        return None
    file = next((group for group, keys in FILES.items() if any(key.startswith(f"{name}.") for name in keys)), None)
    for a, b in itertools.combinations(having, 2):
        same_file = file is None or facts[a.name][file] == facts[b.name][file]
        if show(values[a.name]) != show(values[b.name]) and same_file and not _compared(key, a, b):
            return Difference(key, a.point, values, (a.name, b.name))
    return None


def _compared(key: str, a: Contestant, b: Contestant) -> bool:
    """Whether the study compares these two in this key."""
    same_engine = a.case.engine == b.case.engine
    if key in SHARED:
        return same_engine or any(_sweeps(one, name) for one in (a, b) for name in (key, *SHARED[key]))
    return same_engine and _sweeps(a, key) and _sweeps(b, key)


def _sweeps(contestant: Contestant, key: str) -> bool:
    """Whether the contestant's own sub-grid sweeps the key, or what sets it."""
    return any(_covers(name, key) for swept in contestant.settings for name in SETS.get(swept, (swept,)))


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _refusal(found: Difference) -> str:
    (a, b), key = found.pair, found.key
    where = f" at {show(found.point)}" if found.point else ""
    # As an axis, a setting of DDP alone would still stand on one side only.
    remedy = "make it equal" if key in SHARED else f"make it equal, sweep it (study.axes.{key}=…)"
    return (
        f"{key}: contestants {a} ({show(found.values[a])}) and {b} ({show(found.values[b])}) differ in it{where}, "
        f"and it is not what is compared; {remedy}, or allow it: study.allow_unfair=[{key}]"
    )
