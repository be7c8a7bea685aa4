"""A study folder as tidy tables: one row a launch and block, one row a launch. Times in seconds, per step where named.

Records are read one by one and reduced before they reach pandas. What cannot be read is listed; the rest still loads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import yaml

from analysis import curve
from analysis.launch import BLOCK_COLUMNS, LAUNCH_COLUMNS, read_launch
from benches.errors import UserError
from benches.record import Header
from benches.spec import Contestant, Study, build, content_hash


@dataclass(frozen=True)
class Records:
    """What a study folder holds."""

    folder: Path
    study: Study
    case_ids: tuple[str, ...]
    """Of each contestant, as they were when the study was frozen."""
    contestants: pd.DataFrame
    """One row a contestant; `contestant` is its place in `study.contestants`, the key of the other tables."""
    launches: pd.DataFrame
    """One row a contestant and launch: columns of `contestants` and LAUNCH_COLUMNS. status: as in the record, or
    `missing`, `unreadable`. usable: it has at least one sound block, and step_time_s and throughput over those."""
    blocks: pd.DataFrame
    """One row a contestant, launch and sound block: columns of `contestants` and BLOCK_COLUMNS. wall_s: of the slowest
    rank; step_time_s = wall_s ÷ steps; throughput in the model's samples a second."""
    curves: pd.DataFrame
    """One row a contestant, launch and size of message: columns of `contestants` and curve.COLUMNS."""
    headers: Mapping[str, Header]
    """By case id: the first launch that ended well, else the first that can be read."""
    problems: list[str]
    """What was left out, and why."""


def load(folder: Path) -> pd.DataFrame:
    """The tidy table of a study: see `Records.blocks`. Raises UserError when the folder holds no study."""
    return read(folder).blocks


def read(folder: Path) -> Records:
    """Everything a study folder holds. Raises UserError when it holds no study."""
    study, ids, problems = _read_study(folder)
    contestants = _contestants(study, ids)
    launches: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    headers: dict[str, Header] = {}
    for case_id in dict.fromkeys(ids):
        for number in _numbers(folder / "launches" / case_id, study.launches):
            launch = read_launch(folder / "launches" / case_id / str(number), case_id, number)
            launches.append(launch.row)
            blocks += launch.blocks
            curves += launch.curve
            problems += [f"{case_id}/{number}: {problem}" for problem in launch.problems]
            if launch.header and (case_id not in headers or headers[case_id].status != "ok" == launch.header.status):
                headers[case_id] = launch.header
    launch_table = pd.DataFrame(launches, columns=list(LAUNCH_COLUMNS)).astype(LAUNCH_COLUMNS)
    curve_table = pd.DataFrame(curves, columns=list(curve.COLUMNS)).astype(curve.COLUMNS)
    block_table = pd.DataFrame(blocks, columns=list(BLOCK_COLUMNS)).astype(BLOCK_COLUMNS)
    return Records(
        folder=folder,
        study=study,
        case_ids=ids,
        contestants=contestants,
        launches=contestants.merge(launch_table, on="case_id"),
        blocks=contestants.merge(block_table, on="case_id"),
        curves=contestants.merge(curve_table, on="case_id"),
        headers=headers,
        problems=problems,
    )


def _read_study(folder: Path) -> tuple[Study, tuple[str, ...], list[str]]:
    path = folder / "study.yaml"
    if not path.is_file():
        raise UserError(f"study={folder}: no study.yaml in that folder; give a study's folder or its name")
    try:
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        study = build(Study, content["study"])
        # Hashed as they stand in the file: a field that joins Case later must not change the ids of old studies.
        ids = tuple(content_hash(contestant["case"]) for contestant in content["study"]["contestants"])
    except (yaml.YAMLError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"study={folder}: study.yaml cannot be read: {' '.join(str(error).split())}") from error
    frozen = content.get("hash") == content_hash(content["study"])
    return study, ids, [] if frozen else ["study.yaml was changed after it was frozen: its hash does not fit"]


def _contestants(study: Study, ids: tuple[str, ...]) -> pd.DataFrame:
    table: pd.DataFrame = pd.DataFrame([_contestant(i, c, ids[i]) for i, c in enumerate(study.contestants)])
    return table


def _contestant(index: int, contestant: Contestant, case_id: str) -> dict[str, Any]:
    case = contestant.case
    row: dict[str, Any] = {
        "contestant": index,
        "name": contestant.name,
        "point": label(contestant.point),
        "case_id": case_id,
        "cell": case.cell,
        "engine": case.engine,
        "transport": case.transport or "",
        "model": case.model.name,
        "world_size": case.cluster.world_size,
        "per_rank_batch": case.data.per_rank_batch,
    }
    row |= {f"point.{key}": _scalar(value) for key, value in contestant.point.items()}
    return row | {f"settings.{key}": _scalar(value) for key, value in contestant.settings.items()}


def label(values: Mapping[str, object]) -> str:
    """`key=value` pairs in one line; empty for none."""
    return ", ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())


def _scalar(value: object) -> object:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def _numbers(folder: Path, expected: int) -> list[int]:
    """Launches that the study asks for, and those that are there beyond them."""
    there = {int(path.name) for path in folder.glob("*") if path.name.isascii() and path.name.isdecimal()}
    return sorted(there | set(range(expected)))
