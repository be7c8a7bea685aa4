"""`ringduel report`: a study rendered from its records into files. Rerunning it never needs the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from analysis import content, drawing, export, html, latex, markdown, summary, table
from analysis.document import Document
from analysis.rows import Summary
from benches import manifest
from benches.errors import UserError

Files = dict[str, bytes]
"""Contents by file name."""


EVERY = ("html", "md", "csv", "latex")


def write(study_folder: Path, out: Path, formats: Sequence[str] = EVERY, known_as: Path | None = None) -> list[Path]:
    """Write the report of a study into folder `out` and return its files, the readable one first.

    known_as: the study's path in the commands that the report gives; null: study_folder. Raises UserError for a folder
    that is no study, a format that there is not, or a folder that cannot be written or belongs to a published set.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UserError(f"format={unknown[0]}: not a format; choices: {', '.join(FORMATS)}")
    reduced = summary.reduce(table.read(study_folder))
    document = content.build(reduced, known_as)
    files: Files = {}
    for name in formats:
        files |= FORMATS[name](reduced, document)
    return _write(out, files)


def _write(out: Path, files: Files) -> list[Path]:
    if published := manifest.holder(out):
        raise UserError(f"--out={out}: lies in a published set, {published}, in which nothing is overwritten")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)
    except OSError as error:
        raise UserError(f"out={out}: cannot be written: {error.strerror or error}") from error
    return [out / name for name in files]


def _markdown(reduced: Summary, document: Document) -> Files:
    files = {"report.md": markdown.render(document).encode()}
    for picture in document.pictures():
        for kind in ("svg", "png"):
            files[f"{picture.name}.{kind}"] = drawing.draw(picture, kind)
    return files


def _html(reduced: Summary, document: Document) -> Files:
    return {"report.html": html.render(document).encode()}


def _csv(reduced: Summary, document: Document) -> Files:
    behind = {picture.name: picture.data for picture in document.pictures() if picture.data is not None}
    frames = export.frames(reduced) | behind
    return {f"{name}.csv": export.to_csv(frame).encode() for name, frame in frames.items()}


def _latex(reduced: Summary, document: Document) -> Files:
    return {f"{name}.tex": latex.render(grid).encode() for name, grid in document.tables().items()}


FORMATS: dict[str, Callable[[Summary, Document], Files]] = {
    "html": _html,
    "md": _markdown,
    "csv": _csv,
    "latex": _latex,
}
"""What makes the files of each format."""
