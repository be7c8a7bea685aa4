"""A report as sections of plain parts, without a format. Text is as in the records: each format escapes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from analysis.grids import Grid


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]
    quiet: bool = False
    """A legend, smaller than the text."""


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
    data: pd.DataFrame | None = None
    """What is behind it where no table of the report is."""


@dataclass(frozen=True)
class Folded:
    """Shown on demand, and only where a format can fold."""

    title: str
    parts: Sequence[Part]


Part = Paragraph | Bullets | Code | Picture | Grid | Folded


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]

    @property
    def slug(self) -> str:
        """Names its place in a page and its files: `what-would-change-it`."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Document:
    title: str
    sections: Sequence[Section]
    about: str = ""
    """One line under the title."""

    def pictures(self) -> list[Picture]:
        """Every picture, in order."""
        return [part for section in self.sections for part in section.parts if isinstance(part, Picture)]

    def tables(self) -> dict[str, Grid]:
        """Every table by a name of its own: `evidence-1`."""
        return {
            f"{section.slug}-{number}": grid
            for section in self.sections
            for number, grid in enumerate([part for part in section.parts if isinstance(part, Grid)], start=1)
        }
