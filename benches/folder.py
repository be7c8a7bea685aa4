"""A study's folder: `study.yaml` (frozen and hashed before the first block), `cases/`, `launches/`, `aside/`.

Nothing in it is overwritten. The same study again goes on with what is missing; another one under its name is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benches import record
from benches.errors import UserError
from benches.explain import check, flatten, show
from benches.spec import Case, Contestant, Study, build, content_hash, dump, plain

SCHEMA_VERSION = 1
STUDY = "study.yaml"
SHOWN_DIFFERENCES = 3


@dataclass(frozen=True)
class StudyFolder:
    """Where a study's files are. Paths are made by whoever writes there."""

    path: Path
    study: Study

    def case_file(self, case: Case) -> Path:
        """What a rank is given."""
        return self.path / "cases" / f"{case.id}.yaml"

    def launch(self, contestant: Contestant, number: int) -> Path:
        """Folder of one launch."""
        return self.path / "launches" / contestant.key / str(number)

    def has_record(self, contestant: Contestant, number: int) -> bool:
        """Whether this launch has ended, well or not."""
        return (self.launch(contestant, number) / record.HEADER).exists()

    def interrupted(self) -> list[Path]:
        """Folders of launches that were interrupted: they are done again."""
        headers = sorted((self.path / "launches").glob(f"*/*/{record.HEADER}"))
        return [path.parent for path in headers if json.loads(path.read_text())["status"] == "interrupted"]

    def set_aside(self, contestant: Contestant, number: int) -> None:
        """Move a launch's folder to `aside/<key>/<number>.<k>`, so that it can be tried again and nothing is lost."""
        target = self.path / "aside" / contestant.key
        target.mkdir(parents=True, exist_ok=True)
        tries = sum(path.name.startswith(f"{number}.") for path in target.iterdir())
        self.launch(contestant, number).rename(target / f"{number}.{tries}")


def open_study(study: Study, results: Path) -> StudyFolder:
    """Freeze the study in its folder, or take up the folder that holds just this study.

    Launches that were interrupted are set aside, so that they are missing again. Raises UserError where the name holds
    other content or the folder cannot be written.
    """
    check("study.name", study.name)
    folder = StudyFolder(results / study.name, study)
    try:
        if (folder.path / STUDY).exists():
            _check_same(load_study(folder.path).study, study, folder.path)
            _set_interrupted_aside(folder)
        else:
            _freeze(folder)
        write_cases(folder)
    except OSError as error:
        raise UserError(f"results={results}: cannot be written: {error.strerror or error}") from error
    return folder


def write_cases(folder: StudyFolder) -> None:
    """Write the file of each case that is not there yet; its name is a hash of its content."""
    for contestant in folder.study.contestants:
        _write_once(folder.case_file(contestant.case), dump(contestant.case))


def load_study(path: Path) -> StudyFolder:
    """Read a study's folder. Raises UserError where it is none, or was changed since it was frozen."""
    try:
        content = yaml.load((path / STUDY).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        version, frozen, study = content["schema_version"], content["hash"], content["study"]
    except OSError:
        raise UserError(f"{path}: not a study: there is no {STUDY}") from None
    except (yaml.YAMLError, KeyError, TypeError):
        raise UserError(f"{path / STUDY}: cannot be read as a study") from None
    if version != SCHEMA_VERSION:
        raise UserError(f"{path / STUDY}: has schema version {version}; this Ringduel reads {SCHEMA_VERSION}")
    try:
        found = build(Study, study)
    except msgspec.ValidationError as error:
        raise UserError(f"{path / STUDY}: {error}") from None
    # As it stands in the file: a field that joined Study later must not change the hash of old studies.
    if (now := content_hash(study)) != frozen:
        raise UserError(f"{path / STUDY}: was changed since it was frozen (hash {now}, was {frozen})")
    return StudyFolder(path, found)


def differences(before: Study, after: Study) -> list[str]:
    """What differs, one `key old, now new` each; a setting that differs in many cases stands once."""
    found: dict[str, None] = {}
    outer = [{key: value for key, value in plain(study).items() if key != "contestants"} for study in (before, after)]
    found.update(dict.fromkeys(f"study.{line}" for line in _changes(*outer)))
    old, new = _by_place(before), _by_place(after)
    for place in old.keys() & new.keys():
        found.update(dict.fromkeys(_changes(plain(old[place].case), plain(new[place].case))))
    found.update(dict.fromkeys(f"contestant {place} is gone" for place in old if place not in new))
    found.update(dict.fromkeys(f"contestant {place} is new" for place in new if place not in old))
    return list(found)


def _check_same(frozen: Study, study: Study, path: Path) -> None:
    if frozen.hash == study.hash:
        return
    lines = differences(frozen, study)
    more = f" and {len(lines) - SHOWN_DIFFERENCES} more" if len(lines) > SHOWN_DIFFERENCES else ""
    listed = "; ".join(lines[:SHOWN_DIFFERENCES]) or "the order of contestants"
    raise UserError(f"study.name={study.name}: {path} holds another study: {listed}{more}; choose another study.name")


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old, new = flatten(before, ""), flatten(after, "")
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            yield f"{key} {show(old.get(key))}, now {show(new.get(key))}"


def _by_place(study: Study) -> dict[str, Contestant]:
    """Contestants by name and point."""
    places = {}
    for one in study.contestants:
        where = " ".join(f"{key}={show(value)}" for key, value in one.point.items())
        places[f"{one.name} ({where})" if where else one.name] = one
    return places


def _freeze(folder: StudyFolder) -> None:
    if folder.path.exists() and any(folder.path.iterdir()):
        raise UserError(f"study.name={folder.study.name}: {folder.path} is no study and not empty; choose another name")
    content = {"schema_version": SCHEMA_VERSION, "hash": folder.study.hash, "study": plain(folder.study)}
    _write_once(folder.path / STUDY, dump(content))


def _set_interrupted_aside(folder: StudyFolder) -> None:
    for launch in folder.interrupted():
        contestant = next(one for one in folder.study.contestants if one.key == launch.parent.name)
        folder.set_aside(contestant, int(launch.name))


def _write_once(path: Path, text: str) -> None:
    """Write a file that is either whole or not there; one that is there stays."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
