"""DDP beside Horovod beyond speed: what the study's records and its `beyond.json` show, each row with its source."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import words
from analysis.grids import Column, Grid
from analysis.questions import ENGINES
from analysis.rows import Row, Summary
from benches.measured import BEYOND
from benches.record import HEADER

STARTERS = ("torchrun", "horovodrun", "mpirun", "srun")
NOTHING = "–"

Cells = dict[str, str]
"""Text by engine."""


def grid(summary: Summary) -> Grid:
    """One row a topic; a topic that no record speaks of is left out."""
    columns = [Column("topic"), *(Column({"ddp": "DDP", "horovod": "Horovod"}[name]) for name in ENGINES)]
    rows = [
        [topic, *(cells.get(name) or NOTHING for name in ENGINES), source]
        for topic, cells, source in (*_topics(summary), *_measured(summary))
        if any(cells.values())
    ]
    return Grid("Beyond speed", [*columns, Column("source")], rows)


def _measured(summary: Summary) -> Iterator[tuple[str, Cells, str]]:
    """What `make beyond` found; a row that has nothing of Horovod's is no comparison."""
    found = summary.records.beyond
    if found is None:
        return
    for one in found.findings:
        if one.horovod:
            cells = {"ddp": words.clean(one.ddp, 80), "horovod": words.clean(one.horovod, 80)}
            source = f"{one.source}; {BEYOND}, {found.measured_at[:10]}"
            yield words.clean(one.topic, 80), cells, words.clean(source, 200)


def _topics(summary: Summary) -> Iterator[tuple[str, Cells, str]]:
    launches = summary.records.launches
    run = launches[~launches["status"].isin(["missing", "unreadable"])]
    yield "launches that ended well", _of(run, partial(_ended, summary.records.folder)), "status of each launch"
    yield "transports tried here that worked", _of(run, _transports), "case.transport of launches with status ok"
    yield "started by", _starters(summary), "command of a launch with status ok"
    # A later launch's gate is brief, and how many are depends on what failed.
    started = run["setup_s"] - run["gate_s"].fillna(0)
    starting = _of(run.assign(started_s=started), lambda own: _range(own["started_s"]))
    yield "start-up to the first step, s", starting, "setup_s without parity.took_s, median (range)"
    yield "version", _facts(summary, _version), "provenance.versions"
    yield "transports of the build", _facts(summary, _build), "provenance.horovod_build.transports"
    yield "settings that gave trouble", _of(run, _failures), "reason of launches that did not end well"
    for title, rows in _fields(summary):
        medians = {name: _memory(summary, [row for row in rows if row.case.engine == name]) for name in ENGINES}
        yield f"memory of the largest rank, {title}, MiB", medians, "peak_memory_mb, median (range) of launches"
        sent = {name: _messages([row for row in rows if row.case.engine == name]) for name in ENGINES}
        yield f"messages a step, {title}", sent, "effective.messages_per_step"


def _of(launches: pd.DataFrame, tell: Callable[[pd.DataFrame], str]) -> Cells:
    own = {name: launches[launches["engine"] == name].drop_duplicates(["key", "launch"]) for name in ENGINES}
    return {name: tell(frame) if len(frame) else "" for name, frame in own.items()}


def _ended(study: Path, own: pd.DataFrame) -> str:
    """`17 of 18, 2 tries set aside`: tries that failed before the launch that counts."""
    aside = sum(_failed(path) for key in own["key"].unique() for path in (study / "aside" / key).glob(f"*/{HEADER}"))
    tries = f", {aside} {'try' if aside == 1 else 'tries'} set aside" if aside else ""
    return f"{int(own['status'].eq('ok').sum())} of {len(own)}{tries}"


def _failed(header: Path) -> bool:
    try:
        return json.loads(header.read_text()).get("status") in ("failed", "timeout")
    except (OSError, ValueError, AttributeError):
        return True


def _transports(own: pd.DataFrame) -> str:
    return ", ".join(sorted(set(own.loc[own["status"].eq("ok"), "transport"])))


def _failures(own: pd.DataFrame) -> str:
    reasons = own.loc[~own["status"].isin(["ok", "interrupted"]), "reason"]
    return "; ".join(words.clean(reason, 80) for reason in dict.fromkeys(reasons))


def _range(values: Iterable[float]) -> str:
    """`4.1 (3.9–4.4)`."""
    known = [value for value in values if value == value and value is not None]
    if not known:
        return ""
    low, middle, high = (words.significant(f(known)) for f in (min, statistics.median, max))
    return middle if low == high else f"{middle} ({low}–{high})"


def _facts(summary: Summary, tell: Callable[[str, dict[str, Any]], str]) -> Cells:
    """What the provenance of each engine's launches says, each value once."""
    found: dict[str, list[str]] = {name: [] for name in ENGINES}
    for header in summary.records.headers.values():
        if header.case.engine in found and header.status == "ok":
            found[header.case.engine].append(tell(header.case.engine, header.provenance))
    return {name: "; ".join(dict.fromkeys(filter(None, told))) for name, told in found.items()}


def _version(engine: str, provenance: dict[str, Any]) -> str:
    package = {"ddp": "torch"}.get(engine, engine)
    versions = provenance.get("versions")
    value = versions.get(package) if isinstance(versions, dict) else None
    return f"{package} {words.clean(str(value), 40)}" if value else ""


def _build(engine: str, provenance: dict[str, Any]) -> str:
    build = provenance.get("horovod_build")
    carried = build.get("transports") if engine == "horovod" and isinstance(build, dict) else None
    return ", ".join(words.clean(str(one), 20) for one in carried) if isinstance(carried, list) else ""


def _starters(summary: Summary) -> Cells:
    found: dict[str, set[str]] = {name: set() for name in ENGINES}
    for header in summary.records.headers.values():
        if header.case.engine in found and header.status == "ok":
            line = header.command.replace("torch.distributed.run", "torchrun").replace("/", " ").split()
            found[header.case.engine] |= set(STARTERS) & set(line) or {"direct"}
    return {name: ", ".join(sorted(told)) for name, told in found.items()}


def _fields(summary: Summary) -> Iterator[tuple[str, list[Row]]]:
    """Rows of one table at its largest world size."""
    for group in summary.groups():
        size = max(row.world_size for row in group)
        title = ", ".join(words.clean(part, 40) for part in group[0].group if part)
        yield f"{title}, {words.ranks(size)}", [row for row in group if row.world_size == size]


def _memory(summary: Summary, rows: list[Row]) -> str:
    launches = summary.records.launches
    own = launches[launches["contestant"].isin([row.index for row in rows]) & launches["status"].eq("ok")]
    return _range(own["peak_memory_mb"])


def _messages(rows: list[Row]) -> str:
    counts = [row.effective.get("messages_per_step") for row in rows]
    return _range([float(count) for count in counts if isinstance(count, (int, float))])
