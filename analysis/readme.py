"""`python -m analysis.readme [FILE]`: result tables of published sets, written between two comments of a Markdown file.

    <!-- results: results/published/MACHINE/STUDY -->
    <!-- end of results -->

The path is relative to the file's folder. What stands between the two is replaced; `--check` only says whether it fits.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from analysis import content, grids, headline, markdown, summary, table
from analysis.document import Bullets, Part
from analysis.grids import Grid
from benches.errors import UserError
from benches.manifest import is_published

FILE = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- results: {} -->", "<!-- end of results -->"
BLOCK = re.compile(r"^<!-- results: (\S+) -->\n(.*?)^<!-- end of results -->$", re.MULTILINE | re.DOTALL)
DONE, DIFFERS, MISTAKE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done or it fits, 1 `--check` found other text, 2 the user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m analysis.readme", description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=FILE, help="(default: README.md of this checkout)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a table does not fit its set")
    options = parser.parse_args(arguments)
    try:
        text = options.file.read_text(encoding="utf-8")
        wanted = render(text, options.file.resolve().parent)
        if wanted != text and not options.check:
            options.file.write_text(wanted, encoding="utf-8")
    except (UserError, OSError) as error:
        print(f"analysis.readme: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
    return DIFFERS if options.check and wanted != text else DONE


def sets(text: str) -> list[str]:
    """Paths of the sets whose tables the text holds."""
    return [found[1] for found in BLOCK.finditer(text)]


def render(text: str, home: Path) -> str:
    """The text with each table made anew. home: folder of the file. Raises UserError."""
    if not sets(text):
        raise UserError(f"no table; put the lines {BEGIN.format('results/published/MACHINE/STUDY')} and {END} there")
    if len(sets(text)) != text.count("<!-- results: ") or len(sets(text)) != text.count(END):
        raise UserError(f"a line {BEGIN.format('PATH')} without its {END}, or the other way round")
    return BLOCK.sub(lambda found: f"{BEGIN.format(found[1])}\n{_block(home, found[1])}\n{END}", text)


def _block(home: Path, name: str) -> str:
    """A table for each model, where it comes from, and what its numbers are."""
    if not is_published(home / name):
        raise UserError(f"results: {name}: not a published set; make one: ringduel publish STUDY")
    found = summary.reduce(table.read(home / name))
    link = quote(name)
    where = f"{markdown.escape(content.about(found))} ([records and notes]({link}), [report]({link}/report/report.md))."
    parts: list[Part] = [_narrow(grids.contestants(found, group)) for group in found.groups()]
    parts.append(Bullets([*headline.noise_lines(found), *grids.legend(found)]))
    return "\n\n".join([where, *map(markdown.render_part, parts)])


def _narrow(grid: Grid) -> Grid:
    """As on a narrow terminal, with intervals: a ratio does not stand without one."""
    kept = [i for i, column in enumerate(grid.columns) if not column.wide or column.title == "interval"]
    return Grid(grid.title, [grid.columns[i] for i in kept], [[row[i] for i in kept] for row in grid.rows])


if __name__ == "__main__":
    sys.exit(main())
