"""A report as sections of plain parts, without a format. Text is as in the records: each format escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.grids import Grid


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Lines to be typed or read as they stand."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure; `name` is the stem of its files."""

    name: str
    figure: Figure
    alternative: str
    """What it shows, in words, for those who do not see it."""


Part = Paragraph | Bullets | Code | Picture | Grid


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Document:
    title: str
    sections: Sequence[Section]

    def pictures(self) -> list[Picture]:
        """Every picture, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Picture)]
