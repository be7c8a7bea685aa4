"""A table as LaTeX, for `\\input` into a paper: a `tabular` of the package booktabs, nothing in it a command."""

from __future__ import annotations

import re

from analysis import words
from analysis.grids import Grid

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "−": r"\ensuremath{-}", "±": r"\ensuremath{\pm}", "÷": r"\ensuremath{\div}",
    "×": r"\ensuremath{\times}", "µ": r"\ensuremath{\mu}", "…": r"\ldots{}", "–": "--", "\"": r"\textquotedbl{}",
    "α": r"\ensuremath{\alpha}", "β": r"\ensuremath{\beta}", "σ": r"\ensuremath{\sigma}", "κ": r"\ensuremath{\kappa}",
    "λ": r"\ensuremath{\lambda}", "²": r"\ensuremath{^2}", "[": "{[}", "]": "{]}", "*": r"\textasteriskcentered{}",
}  # fmt: skip


def render(grid: Grid) -> str:
    """The text of a file: a comment with the title, then the tabular."""
    columns = "".join("r" if column.align == "right" else "l" for column in grid.columns)
    head = " & ".join(escape(column.line) for column in grid.columns)
    lines = [f"% {escape(grid.title)}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf"{head} \\", r"\midrule"]
    for number, row in enumerate(grid.rows):
        if number in grid.sections:
            lines.append(r"\addlinespace")
        lines.append(rf"{' & '.join(escape(cell) for cell in row)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escape(text: str) -> str:
    """One line in which nothing is a command, and what pdfLaTeX has no letter for is spelled."""
    shown = re.sub(r"[^\w\s]|[αβσκλµ²]", lambda found: SPECIAL.get(found[0], found[0]), words.clean(text))
    return shown.replace("_", r"\_")
