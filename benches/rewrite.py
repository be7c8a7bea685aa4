"""A study's files once more, without what names people and machines, see `benches.scrub`.

Where that touches a case, its id, a hash of its content, changes with it, and so do the keys of its launches and the
hash of the study: the copy is as consistent as what it is a copy of.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from analysis.table import Records
from benches import measured
from benches.errors import UserError
from benches.folder import STUDY
from benches.measured import Beyond
from benches.record import CURVE, CURVE_SCHEMA, HEADER, SAMPLE_SCHEMA, SAMPLES
from benches.scrub import KINDS, Scrubber, accounts
from benches.spec import build, content_hash, dump, plain

RAW = {SAMPLES: SAMPLE_SCHEMA, CURVE: CURVE_SCHEMA}
"""Files of a launch that hold numbers alone, with their columns; copied as they are."""
TEXTS = ("command", "reason", "log_tail", "warnings", "effective", "provenance")
"""Fields of a header that may name anything."""
AS_THEY_ARE = ("versions", "torch_build", "git")
"""Provenance that names software only; four numbers of a version look like an address."""
NAMING = ("hosts", "env", "identity_file", "python", "root", "host", "site", "ranks", *TEXTS[:-1])
"""Keys below which a word that is a host's or a user's name means that one; elsewhere `local` is a kind of cluster."""


class Rewriter:
    """Writes the records of one study without the names in them."""

    def __init__(self, records: Records, roots: Mapping[str, str], hosts: set[str], users: set[str]) -> None:
        """roots: what to call known folders; hosts, users: names that are known besides those that records give."""
        self.folder, self.beyond = records.folder, records.beyond
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.content: dict[str, Any] = yaml.load((self.folder / STUDY).read_bytes(), Loader=loader)
        self.headers = {home: msgspec.json.decode((home / HEADER).read_bytes()) for home in self._homes()}
        headers = list(self.headers.values())
        texts = [json.dumps(one) for one in (self.content, *headers)]
        self.scrubber = Scrubber(
            hosts=hosts | {name for header in headers for name in hosts_of(header)},
            users=users | accounts(texts),
            roots={**roots, **{path: name for header in headers for path, name in roots_of(header)}},
        )
        self.ids: dict[str, str] = {}
        """Old id of each case that changed, with the new one."""

    def write(self, out: Path) -> None:
        """`study.yaml`, `cases/`, `launches/` and what was measured beside them.

        Raises UserError for samples that cannot be read.
        """
        content = self._study()
        (out / STUDY).write_text(dump(content), encoding="utf-8")
        (out / "cases").mkdir()
        for contestant in content["study"]["contestants"]:
            case = contestant["case"]
            (out / "cases" / f"{content_hash(case)}.yaml").write_text(dump(case), encoding="utf-8")
        if self.beyond:
            measured.write(out, build(Beyond, self.scrubber.tree(plain(self.beyond), _names)))
        for home, header in self.headers.items():
            place = out / self._renamed(home.relative_to(self.folder).as_posix())
            place.mkdir(parents=True)
            text = msgspec.json.format(msgspec.json.encode(self._header(header)), indent=1)
            (place / HEADER).write_bytes(text + b"\n")
            _copy_raw(home, place)

    def told(self) -> list[tuple[str, str, int, int]]:
        """Of each kind: its name, what it is, how many values were taken out, in how many places."""
        distinct = self.scrubber.distinct()
        return [(kind, what, distinct[kind], self.scrubber.replaced[kind]) for kind, what in KINDS.items()]

    def _homes(self) -> Iterator[Path]:
        return (path.parent for path in sorted((self.folder / "launches").glob(f"*/*/{HEADER}")))

    def _study(self) -> dict[str, Any]:
        study = self.content["study"]
        # Its name, which is a folder's, is the user's to choose.
        scrubbed = self.scrubber.tree({key: value for key, value in study.items() if key != "name"}, _names)
        scrubbed = {key: scrubbed.get(key, study["name"]) for key in study}
        for old, new in zip(study["contestants"], scrubbed["contestants"], strict=True):
            # It holds the values that it sweeps.
            new["name"] = self.scrubber.text(old["name"], any(map(_names, old["settings"])))
            ids = content_hash(old["case"]), content_hash(new["case"])
            self.ids |= {ids[0]: ids[1]} if ids[0] != ids[1] else {}
        return self.content | {"hash": content_hash(scrubbed), "study": scrubbed}

    def _header(self, header: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in header.items() if key not in (*TEXTS, "case")}
        texts = {key: header[key] for key in (*TEXTS, "case") if key in header}
        provenance = texts.get("provenance", {})
        scrubbed = self.scrubber.tree(texts, _names)
        kept["provenance"] = scrubbed.pop("provenance", {}) | {k: provenance[k] for k in AS_THEY_ARE if k in provenance}
        changed: dict[str, Any] = json.loads(self._renamed(json.dumps(kept | scrubbed)))
        return {key: changed[key] for key in header}

    def _renamed(self, text: str) -> str:
        for old, new in self.ids.items():
            text = text.replace(old, new)
        return text


def hosts_of(header: Mapping[str, Any]) -> Iterator[str]:
    """Host names that a header gives."""
    provenance = header.get("provenance", {})
    yield str(provenance.get("host", {}).get("name", ""))
    yield from (str(rank.get("host", "")) for rank in provenance.get("ranks", []))
    for host in provenance.get("site", {}).get("hosts", []):
        yield from (str(host.get(key, "")) for key in ("host", "name"))
    yield from (entry.partition(":")[0] for entry in header["case"]["cluster"].get("hosts", []))


def roots_of(header: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Folders that the command of a launch gives: the one that it was called from, and the study's."""
    try:
        words = shlex.split(header["command"])
    except ValueError:
        return
    if words[:1] == ["(cd"]:
        yield words[1], "folder"
    if "--out" in words[:-1]:
        out = Path(words[words.index("--out") + 1])
        # <study>/launches/<key>/<launch>
        yield from [(str(out.parents[2]), "study")] if out.is_absolute() and len(out.parts) > 4 else []


def _names(key: str) -> bool:
    return key.rpartition(".")[2] in NAMING


def _copy_raw(home: Path, place: Path) -> None:
    for name, schema in RAW.items():
        if not (home / name).exists():
            continue
        try:
            columns = pq.read_schema(home / name).names
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"study: {home / name} cannot be read: {' '.join(str(error).split())}") from error
        if columns != schema.names:
            raise UserError(f"study: {home / name} has other columns than {', '.join(schema.names)}")
        shutil.copyfile(home / name, place / name)
