"""What a report says, in its order: decision, evidence, doubts, failures, method, provenance, commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis import beyond, decision, findings, grids, headline, library, method, plots, tidy, words
from analysis.document import Bullets, Code, Document, Folded, Paragraph, Part, Picture, Section
from analysis.grids import Column, Grid
from analysis.marks import MEANINGS
from analysis.rows import Row, Summary
from benches.spec import dump

MOST_WARNINGS = 50
PER_RANK = ("ranks",)
"""Provenance that differs from rank to rank: it stays in the records."""


def build(summary: Summary, known_as: Path | None = None) -> Document:
    """The report of a study. known_as: its folder's path in commands; null: as it was read."""
    study = summary.records.study
    sections = [section for section in _sections(summary, known_as or summary.records.folder) if section.parts]
    return Document(f"Ringduel: {study.name}", sections, about(summary))


def about(summary: Summary) -> str:
    """Where and when it was measured, in one line."""
    launches = summary.records.launches
    headers = [header for header in summary.records.headers.values() if header.status == "ok"]
    days = sorted({header.started_at[:10] for header in headers})
    devices = sorted({words.clean(header.device, 60) for header in headers if header.device})
    count = int(launches.drop_duplicates(["key", "launch"])["status"].ne("missing").sum())
    parts = [
        f"{len(summary.rows)} contestants, {count} launches",
        *([f"on {'; '.join(devices)}"] if devices else []),
        *([words.clean(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}", 30)] if days else []),
    ]
    return ", ".join(parts)


def _sections(summary: Summary, known_as: Path) -> Iterator[Section]:
    records = summary.records
    blocks, curves = tidy.tidy(records), tidy.curves_of(records)
    scaled = library.scaling(blocks)
    tuned = library.tuning(blocks)
    yield Section("Decision", _decision(summary))
    yield Section("Evidence", [*_evidence(summary), *findings.singles(summary, scaled)])
    yield Section("Why", [*findings.why(blocks), *_curves(summary), *findings.fabric(curves)])
    yield Section("What would change it", [Bullets(found)] if (found := decision.changes(summary)) else [])
    yield Section("Caveats and warnings", [*_failures(summary), *_warnings(summary)])
    yield Section("Scaling", findings.scaling(scaled))
    yield Section("Cost", _costs(summary))
    yield Section("Sweeps", findings.sweep(summary, tuned, curves))
    yield Section("Beyond speed", [grid] if (grid := beyond.grid(summary)).rows else [])
    yield Section("Method", [Paragraph(text) for text in method.paragraphs(summary)])
    yield Section("Provenance", [provenance(summary), *_configs(summary), *_commands(summary, known_as)])


def _decision(summary: Summary) -> list[Part]:
    decided = [decision.grid(summary)] if summary.questions else []
    return [*decided, Bullets([*headline.headlines(summary), *headline.noise_lines(summary)])]


def _evidence(summary: Summary) -> list[Part]:
    return [*_tables(summary), *_pictures(summary), *_comparisons(summary), *_steps(summary)]


def _comparisons(summary: Summary) -> list[Part]:
    return [grids.comparisons(summary)] if summary.comparisons else []


def _failures(summary: Summary) -> list[Part]:
    return [grids.failures(summary)] if summary.failures else []


def _costs(summary: Summary) -> list[Part]:
    grid = grids.costs(summary)
    titles = [column.title for column in grid.columns]
    priced = grids.COST_LEGEND if grids.COSTS["cost_per_million"] in titles else ()
    energy = grids.ENERGY_LEGEND if grids.COSTS["energy_per_million"] in titles else ()
    return [grid, Bullets([*priced, *energy], quiet=True)] if grid.rows else []


def _configs(summary: Summary) -> list[Part]:
    """Every case in full, to be unfolded."""
    cases = {row.case_id: row for row in summary.rows}
    title = "{} ({}), {}: its whole case, {}"
    return [
        Folded(
            title.format(row.title, ", ".join(filter(None, row.group)), words.ranks(row.world_size), case_id),
            [Code(dump(row.case))],
        )
        for case_id, row in cases.items()
    ]


def _tables(summary: Summary) -> list[Part]:
    tables: list[Part] = [grids.contestants(summary, group) for group in summary.groups()]
    carried = {mark for row in summary.rows for mark in row.marks}
    meanings = [f"{mark}: {meaning}" for mark, meaning in MEANINGS.items() if mark in carried]
    return [*tables, Bullets([*grids.legend(summary), *meanings], quiet=True)]


def _pictures(summary: Summary) -> list[Part]:
    found = "; ".join(headline.headlines(summary))
    steps = f"Milliseconds a step of each launch, by model and number of ranks. {found}"
    ratios = f"Ratio of step times to the reference with intervals and the margin. {found}"
    pictures = [Picture("step_times", plots.step_times(summary), steps)]
    return [*pictures, *([Picture("ratios", plots.ratios(summary), ratios)] if summary.comparisons else [])]


def _steps(summary: Summary) -> list[Part]:
    measured = [rows for group in summary.groups() if (rows := [row for row in group if row.ranked])]
    return [*map(grids.steps, measured), Bullets(list(grids.STEPS_LEGEND), quiet=True)] if measured else []


def _curves(summary: Summary) -> list[Part]:
    tables = grids.curves(summary)
    if not tables:
        return []
    shown = "Bus bandwidth of the all-reduce against the size of its message, one line a contestant."
    picture = Picture("allreduce", plots.curves(summary), shown)
    return [*tables, Bullets(list(grids.CURVE_LEGEND), quiet=True), picture]


def _warnings(summary: Summary) -> list[Part]:
    shown = summary.warnings[:MOST_WARNINGS]
    more = len(summary.warnings) - len(shown)
    return [Bullets([*shown, *([f"and {more} more, under --json"] if more else [])])] if shown else []


def provenance(summary: Summary) -> Grid:
    """Versions, hardware, build and git state; one row a value, with the contestants for which it holds."""
    found: dict[tuple[str, str], list[Row]] = {}
    rows = {row.case_id: row for row in summary.rows}
    for case_id, row in rows.items():
        header = summary.records.headers.get(case_id)
        values = {} if header is None else {key: v for key, v in header.provenance.items() if key not in PER_RANK}
        for key, value in _flat(values):
            found.setdefault((key, value), []).append(row)
    known = sum(case_id in summary.records.headers for case_id in rows)
    columns = [Column("what"), Column("value"), Column("contestants")]
    cells = [[words.clean(k, 80), words.clean(v, 300), _whose(whose, known)] for (k, v), whose in found.items()]
    return Grid("Where it was measured, and with what", columns, cells)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _whose(rows: list[Row], known: int) -> str:
    if len(rows) == known:
        return "all"
    names = list(dict.fromkeys(words.clean(row.title, 40) for row in rows))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _commands(summary: Summary, known_as: Path) -> list[Part]:
    """One launch of each contestant, as it was started."""
    lines = []
    for case_id, row in {row.case_id: row for row in summary.rows}.items():
        header = summary.records.headers.get(case_id)
        if header:
            lines += [f"# {words.clean(headline.subject([row]))}, {row.title}", header.command.strip()]
    text = (
        "One launch of each contestant, as it was started. Give --out a folder of your own: no record is overwritten. "
        "The cases stand in cases/ of the study's folder."
    )
    again = Code(f"ringduel report {shlex.quote(str(known_as))}")
    launches: list[Part] = [Paragraph(text), Code("\n".join(lines))] if lines else []
    return [Paragraph("This report, from its records:"), again, *launches]
