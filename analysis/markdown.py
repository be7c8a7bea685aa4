"""A Document as GitHub-flavoured Markdown. Nothing in a record can become markup."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from analysis import words
from analysis.document import Bullets, Code, Document, Folded, Paragraph, Part, Picture
from analysis.grids import Grid

# Markup, formulas, mentions, issue numbers; _ unless inside a word; : before text (bare links, emoji); www.; a bullet.
SPECIAL = re.compile(r"[\\`*\[\]|~$@#]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=www)\.|^[-+](?=[-+\s]|$)", re.IGNORECASE)


def render(document: Document) -> str:
    """The text of a file; pictures are named by their SVG beside it."""
    lines = [f"# {escape(document.title)}", *([escape(document.about)] if document.about else [])]
    for section in document.sections:
        lines.append(f"## {escape(section.title)}")
        lines += [render_part(part) for part in section.parts if not isinstance(part, Folded)]
    return "\n\n".join(lines) + "\n"


def escape(text: str) -> str:
    """One line in which nothing is markup, HTML, a link, a mention or a formula."""
    text = words.clean(text).strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", SPECIAL.sub(r"\\\g<0>", text))


def render_part(part: Part) -> str:
    renderers: dict[type, Callable[[Any], str]] = {
        Paragraph: lambda p: escape(p.text),
        Bullets: lambda p: "\n".join(f"- {escape(item)}" for item in p.items),
        Code: _code,
        Picture: lambda p: f"![{escape(p.alternative)}]({p.name}.svg)",
        Grid: _grid,
    }
    return renderers[type(part)](part)


def _code(part: Code) -> str:
    text = "\n".join(words.clean(line) for line in part.text.splitlines())
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def _grid(grid: Grid) -> str:
    rules = ["--:" if column.align == "right" else ":--" for column in grid.columns]
    rows = [[column.line for column in grid.columns], *grid.rows]
    head, *body = ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    title = [f"**{escape(grid.title)}**", ""] if grid.title else []
    return "\n".join([*title, head, "| " + " | ".join(rules) + " |", *body])
