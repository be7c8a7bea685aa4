"""`NOTES.md` of a published set: the machine, the software, what is there and what was taken out. Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis import content, markdown, words
from analysis.document import Bullets, Code, Document, Paragraph, Section
from analysis.grids import Column, Grid
from analysis.rows import Summary
from benches.manifest import MANIFEST

Scrubbed = Sequence[tuple[str, str, int, int]]
"""Kind, what that is, values taken out, places where they stood."""

THERE = (
    "study.yaml, cases/: the configuration, frozen and hashed before the first block",
    "launches/: of each launch the record and the raw seconds of every step and block on every rank; no logs",
    "report/: as it was rendered when the set was published",
    f"{MANIFEST}: of every other file here; whoever reads the set with Ringduel checks it first",
)


def render(summary: Summary, known_as: Path, scrubbed: Scrubbed, aside: int) -> str:
    """The text of the file. known_as: the set's path as commands give it; aside: launches that were tried again."""
    study = summary.records.study
    path = shlex.quote(str(known_as))
    check = Code(f"(cd {path} && sha256sum --check {MANIFEST})\nringduel report {path}")
    return markdown.render(
        Document(
            f"{study.name} on {known_as.parent.name}",
            [
                Section("Machine and software", [content.provenance(summary)]),
                Section("What is here", [Bullets([*THERE, *_left_out(summary, aside)]), check]),
                Section("What was taken out", [Paragraph(_told(scrubbed)), _grid(scrubbed)]),
            ],
            content.about(summary),
        )
    )


def _left_out(summary: Summary, aside: int) -> Iterator[str]:
    launches = summary.records.launches.drop_duplicates(["key", "launch"])
    failed = int((~launches["status"].isin(["ok", "missing"])).sum())
    yield f"of {int(launches['status'].ne('missing').sum())} launches {failed} failed; their records are here too"
    if aside:
        yield f"{aside} {'launch was' if aside == 1 else 'launches were'} set aside and tried again; not here"
    yield from (f"the analysis leaves out: {problem}" for problem in summary.records.problems)


def _told(scrubbed: Scrubbed) -> str:
    count = sum(places for *_, places in scrubbed)
    if not count:
        return "Nothing was found that names people or machines."
    return (
        f"Before publishing, {count} places in study.yaml, cases/ and the records were given pseudonyms in braces; "
        "equal values have equal ones. Raw seconds were copied byte by byte. Where a case changed by that, its id did "
        "too."
    )


def _grid(scrubbed: Scrubbed) -> Grid:
    columns = [Column("kind"), Column("what"), Column("values", "right"), Column("places", "right")]
    rows = [[words.clean(kind), words.clean(what), str(values), str(places)] for kind, what, values, places in scrubbed]
    return Grid("", columns, rows)
