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
from analysis.launch import BLOCK_COLUMNS, LAUNCH_COLUMNS, MAIN, Launch, read_launch, stage
from benches import manifest, measured
from benches.errors import UserError
from benches.measured import Beyond
from benches.record import Header
from benches.spec import Contestant, Study, build, content_hash


@dataclass(frozen=True)
class Records:
    """What a study folder holds."""

    folder: Path
    study: Study
    case_ids: tuple[str, ...]
    """Of each contestant, as they were when the study was frozen."""
    keys: tuple[str, ...]
    """Of each contestant: names the folder of its launches. A case id, for a copy with its number behind it."""
    contestants: pd.DataFrame
    """One row a contestant; `contestant` is its place in `study.contestants`, the key of the other tables."""
    launches: pd.DataFrame
    """One row a contestant and launch: columns of `contestants` and LAUNCH_COLUMNS. status: as in the record, or
    `missing`, `unreadable`. usable: it has at least one sound block, and step_time_s and throughput over those. stage:
    main, the sample of all estimates; again, confirm: further launches, see analysis.further."""
    blocks: pd.DataFrame
    """One row a contestant, launch and sound block: columns of `contestants` and BLOCK_COLUMNS. wall_s: of the slowest
    rank; step_time_s = wall_s ÷ steps; throughput in the model's samples a second."""
    curves: pd.DataFrame
    """One row a contestant, launch and size of message: columns of `contestants` and curve.COLUMNS."""
    headers: Mapping[str, Header]
    """By key: the first launch that ended well, else the first that can be read."""
    problems: list[str]
    """What was left out, and why."""
    beyond: Beyond | None = None
    """What was measured beside the speed of a step; None: nothing was."""

    @property
    def originals(self) -> Study:
        """The study without the copies that the driver added."""
        return msgspec.structs.replace(self.study, contestants=tuple(c for c in self.study.contestants if not c.copy))


def load(folder: Path) -> pd.DataFrame:
    """The tidy table of a study: see `Records.blocks`. Raises UserError when the folder holds no study."""
    return read(folder).blocks


def read(folder: Path) -> Records:
    """Everything a study folder holds. Raises UserError when it holds no study, or is not what was published."""
    if manifest.is_published(folder):
        manifest.check(folder)
    study, ids, problems = _read_study(folder)
    keys = tuple(f"{i}-{c.copy}" if c.copy else i for i, c in zip(ids, study.contestants, strict=True))
    contestants = _contestants(study, ids, keys)
    found: dict[str, list[Launch]] = {}
    expected = _expected(study, folder, keys)
    for key, case_id in dict(zip(keys, ids, strict=True)).items():
        home = folder / "launches" / key
        found[key] = [read_launch(home / str(number), key, case_id, number) for number in _numbers(home, expected)]
    launches = [launch for own in found.values() for launch in own]
    beyond, fault = _read_beyond(folder)
    problems += fault
    problems += [f"{one.row['key']}/{one.row['launch']}: {line}" for one in launches for line in one.problems]

    def joined(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
        frame: pd.DataFrame = contestants.merge(pd.DataFrame(rows, columns=list(columns)).astype(columns), on="key")
        return frame

    return Records(
        folder=folder,
        study=study,
        case_ids=ids,
        keys=keys,
        contestants=contestants,
        launches=joined([launch.row for launch in launches], LAUNCH_COLUMNS),
        blocks=joined([block for launch in launches for block in launch.blocks], BLOCK_COLUMNS),
        curves=joined([size for launch in launches for size in launch.curve], curve.COLUMNS),
        headers={key: header for key, own in found.items() if (header := _header(own)) is not None},
        problems=problems,
        beyond=beyond,
    )


def _read_beyond(folder: Path) -> tuple[Beyond | None, list[str]]:
    try:
        return measured.read(folder), []
    except (OSError, ValueError) as error:
        return None, [f"{measured.BEYOND} cannot be read: {' '.join(str(error).split())}"]


def _header(launches: list[Launch]) -> Header | None:
    """Of the first launch that ended well, else of the first that can be read."""
    headers = [launch.header for launch in launches if launch.header is not None]
    return next((header for header in headers if header.status == "ok"), headers[0] if headers else None)


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


def _contestants(study: Study, ids: tuple[str, ...], keys: tuple[str, ...]) -> pd.DataFrame:
    rows = [_contestant(i, c, ids[i], keys[i]) for i, c in enumerate(study.contestants)]
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def _contestant(index: int, contestant: Contestant, case_id: str, key: str) -> dict[str, Any]:
    case = contestant.case
    row: dict[str, Any] = {
        "contestant": index,
        "name": contestant.name,
        "point": label(contestant.point),
        "case_id": case_id,
        "key": key,
        "copy": contestant.copy,
        "heat": contestant.heat,
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


def _expected(study: Study, folder: Path, keys: tuple[str, ...]) -> int:
    """Main launches that are due: those up to the first look that no contestant has passed."""
    there = [number for key in keys for number in _there(folder / "launches" / key) if stage(number) == MAIN]
    seen = max(there, default=-1) + 1
    return next((look for look in study.looks if look >= seen), study.looks[-1])


def _numbers(folder: Path, expected: int) -> list[int]:
    """Launches that the study asks for, and those that are there beyond them."""
    return sorted(_there(folder) | set(range(expected)))


def _there(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isascii() and path.name.isdecimal()}


def main_launches(records: Records) -> int:
    """How many were run: up to the last number that has a record."""
    run = records.launches[records.launches["stage"].eq(MAIN) & records.launches["status"].ne("missing")]
    return int(run["launch"].max()) + 1 if len(run) else 0
