"""Studies made up for the tests: true step times and launch noise are planted, the records are written as ranks do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from benches import record
from benches.spec import (
    Case,
    ClusterSpec,
    Contestant,
    DataSpec,
    DdpSettings,
    HorovodSettings,
    ModelSpec,
    OptimizerSpec,
    Study,
    plain,
)

HOST = {"name": "node1", "cpu": "Test CPU", "cpus": 8, "memory_mb": 16000, "nics": [], "gpus": []}


def make_case(engine: str, transport: str | None, ranks: int, **changes: Any) -> Case:
    """A case; `model`, `batch`, `threads` and `cluster` by name, and any field of Case."""
    model = ModelSpec(
        name=changes.pop("model", "resnet18_64"),
        factory="torchvision.models:resnet18",
        batch="benches.workloads.batches:images",
        sample="image",
    )
    cluster = ClusterSpec(
        name=changes.pop("cluster", "local"), ranks_per_node=ranks, threads_per_rank=changes.pop("threads", 1)
    )
    return Case(
        engine=engine,  # type: ignore[arg-type]
        transport=transport,  # type: ignore[arg-type]
        device="cpu",
        model=model,
        data=DataSpec(per_rank_batch=changes.pop("batch", 16)),
        optimizer=OptimizerSpec(),
        ddp=DdpSettings() if engine == "ddp" else None,
        horovod=HorovodSettings() if engine == "horovod" else None,
        cluster=cluster,
        **changes,
    )


@dataclass
class Plant:
    """A contestant and what is true of it."""

    case: Case
    step_s: float
    """Its true step time."""
    name: str = ""
    point: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    launch_sd: float = 0.01
    """Standard deviation of the launches' log step times."""
    parity: record.Parity | None = None
    launches: int | None = None
    """Launches that have a record; None: all of the study."""
    copy: int = 0
    heat: int = 0
    extra: dict[int, float] = field(default_factory=dict)
    """True step time of further launches, by their number."""


PASSED = record.Parity(passed=True, error=1e-9, bound=1e-7)


def samples(walls: np.ndarray, steps: int) -> pa.Table:
    """Samples of one launch; walls: seconds of each block on each rank, shape (blocks, ranks)."""
    rows: list[tuple[str, int, int, int, float, float]] = []
    for rank in range(walls.shape[1]):
        now = 0.0
        for step in range(10):
            rows.append(("warmup", rank, -1, step, now, 0.5))
            now += 0.5
        for block, wall in enumerate(walls[:, rank]):
            rows += [("step", rank, block, step, now + step * wall / steps, wall / steps) for step in range(steps)]
            rows.append(("block", rank, block, -1, now, wall))
            now += wall
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    columns[0] = columns[0].dictionary_encode()
    return pa.table(columns, names=record.SAMPLE_SCHEMA.names)


def header(case: Case, launch: int, **changes: Any) -> record.Header:
    """The header of a launch that ended well."""
    values: dict[str, Any] = {
        "case_id": case.id,
        "case": case,
        "launch": launch,
        "status": "ok",
        "command": f"python -m benches.worker cases/{case.id}.yaml --launch {launch}",
        "started_at": "2026-01-01T00:00:00+00:00",
        "duration_s": 12.5,
        "setup_s": 4.0,
        "world_size": case.cluster.world_size,
        "device": "Test CPU",
        "samples_per_step": case.global_batch,
        "peak_memory_mb": [300.0] * case.cluster.world_size,
        "parity": PASSED,
        "provenance": {
            "versions": {"python": "3.11.1", "torch": "2.14.1"},
            "host": HOST,
            "git": {"commit": "0" * 40, "dirty": False},
            "ranks": [{"host": "node1", "threads": 1}] * case.cluster.world_size,
        },
    }
    return record.Header(**values | changes)


def write_study(folder: Path, study: Study) -> None:
    """study.yaml as the driver writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"schema_version": 1, "hash": study.hash, "study": plain(study)}
    (folder / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def plant(folder: Path, plants: list[Plant], seed: int = 0, **study: Any) -> Study:
    """Write a study folder whose records hold the planted step times."""
    contestants = tuple(contestant(p) for p in plants)
    made = Study(name="planted", contestants=contestants, **{"launches": 3, "rounds": 3, "margin": 0.02} | study)
    write_study(folder, made)
    random = np.random.default_rng(seed)
    for p in plants:
        levels = dict.fromkeys(range(made.launches if p.launches is None else p.launches), p.step_s) | p.extra
        for launch, step_s in levels.items():
            out = folder / "launches" / contestant(p).key / str(launch)
            if not out.exists():
                _write_launch(out, replace(p, step_s=step_s), launch, made.rounds, random)
    return made


def contestant(p: Plant) -> Contestant:
    """As it stands in the study."""
    name = p.name or p.case.cell.replace("/", "-")
    return Contestant(name=name, point=p.point, settings=p.settings, case=p.case, copy=p.copy, heat=p.heat)


def _write_launch(out: Path, p: Plant, launch: int, rounds: int, random: np.random.Generator) -> None:
    parity = p.parity or PASSED
    if not parity.passed:
        reason = "parity: reduction"
        record.write(out, header(p.case, launch, status="failed", reason=reason, parity=parity), None)
        return
    level = p.step_s * np.exp(random.normal(0, p.launch_sd)) * p.case.block_steps
    slowest = level * np.exp(random.normal(0, 0.002, size=rounds))
    walls = slowest[:, None] * np.linspace(1, 0.99, p.case.cluster.world_size)[None, :]
    record.write(out, header(p.case, launch, parity=parity), samples(walls, p.case.block_steps))


SMOKE = [
    ("resnet18_64", 1, "local", None, 0.0462),
    ("resnet18_64", 1, "ddp", "gloo", 0.0471),
    ("resnet18_64", 1, "horovod", "gloo", 0.0469),
    ("resnet18_64", 1, "horovod", "mpi", 0.0474),
    ("resnet18_64", 2, "ddp", "gloo", 0.0713),
    ("resnet18_64", 2, "horovod", "gloo", 0.1250),
    ("resnet18_64", 2, "horovod", "mpi", 0.0735),
    ("digits", 1, "local", None, 0.00061),
    ("digits", 1, "ddp", "gloo", 0.00074),
    ("digits", 1, "horovod", "gloo", 0.00072),
    ("digits", 1, "horovod", "mpi", 0.00072),
    ("digits", 2, "ddp", "gloo", 0.00123),
    ("digits", 2, "horovod", "gloo", 0.00412),
    ("digits", 2, "horovod", "mpi", 0.00235),
]
"""Model, ranks, engine, transport and seconds a step of a study like `experiment=smoke`."""


def smoke() -> list[Plant]:
    """Contestants of a study like `experiment=smoke`."""
    return [
        Plant(
            make_case(engine, transport, ranks, model=model),
            step_s,
            point={"model": model, "cluster.ranks_per_node": ranks},
            launch_sd=0.015,
        )
        for model, ranks, engine, transport, step_s in SMOKE
    ]
