"""A Document as one HTML file that needs nothing else: no network, style, script and figures inside.

Jinja escapes every text; the only markup that is let through is ours and matplotlib's. The page forbids itself, by its
Content-Security-Policy, to load anything and to run any script but its own.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import jinja2
from markupsafe import Markup

from analysis import drawing, words
from analysis.document import Bullets, Code, Document, Folded, Paragraph, Part, Picture, Section
from analysis.grids import Grid

TEMPLATES = Path(__file__).parent / "templates"


def render(document: Document) -> str:
    """The text of a file."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return _template().render(
        document=_clean(document),
        kind_of=lambda part: type(part).__name__,
        drawing=drawing.inline,
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2")


def _clean(document: Document) -> Document:
    sections = [Section(section.title, [_clean_part(part) for part in section.parts]) for section in document.sections]
    return Document(_text(document.title), sections, _text(document.about))


def _text(text: str) -> str:
    """Without characters that HTML cannot hold or that turn text around; a number and its % stay together."""
    return words.clean(text).replace(" %", "\u00a0%")


def _clean_part(part: Part) -> Part:
    cleaners: dict[type, Callable[..., Part]] = {
        Paragraph: lambda p: Paragraph(_text(p.text)),
        Bullets: lambda p: Bullets([_text(item) for item in p.items], p.quiet),
        Code: lambda p: Code("\n".join(words.clean(line) for line in p.text.splitlines())),
        Picture: lambda p: dataclasses.replace(p, alternative=_text(p.alternative)),
        Folded: lambda p: Folded(_text(p.title), [_clean_part(inner) for inner in p.parts]),
        Grid: lambda p: dataclasses.replace(p, title=_text(p.title), rows=[list(map(_text, row)) for row in p.rows]),
    }
    return cleaners[type(part)](part)
