"""`ringduel report`: a study rendered from its records into files. Rerunning it never needs the cluster."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

from analysis import content, export, markdown, summary, table
from analysis.document import Document
from analysis.rows import Summary
from benches.errors import UserError

PNG_DPI = 150

Files = dict[str, bytes]
"""Contents by file name."""


def write(study_folder: Path, out: Path, formats: Sequence[str] = ("md", "csv")) -> list[Path]:
    """Write the report of a study into folder `out` and return its files, the readable one first.

    Raises UserError for a folder that is no study, a format that there is not, or a folder that cannot be written.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UserError(f"format={unknown[0]}: not a format; choices: {', '.join(FORMATS)}")
    reduced = summary.reduce(table.read(study_folder))
    document = content.build(reduced)
    files: Files = {}
    for name in formats:
        files |= FORMATS[name](reduced, document)
    return _write(out, files)


def _write(out: Path, files: Files) -> list[Path]:
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
            buffer = io.BytesIO()
            # Without a date, and with ids that do not vary, the same records give the same bytes.
            with matplotlib.rc_context({"svg.hashsalt": picture.name}):
                metadata = {"Date": None} if kind == "svg" else {}
                picture.figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata=metadata)
            files[f"{picture.name}.{kind}"] = buffer.getvalue()
    return files


def _csv(reduced: Summary, document: Document) -> Files:
    return {f"{name}.csv": export.to_csv(frame).encode() for name, frame in export.frames(reduced).items()}


FORMATS: dict[str, Callable[[Summary, Document], Files]] = {"md": _markdown, "csv": _csv}
"""What makes the files of each format."""
