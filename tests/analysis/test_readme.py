"""The result tables of README.md: made of published sets by a command, and just what those sets say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from planted import plant, smoke

from analysis import readme, report
from benches.publish import publish

TEXT = f"# Title\n\n{readme.BEGIN.format('results/published/here/planted')}\nold\n{readme.END}\n\nrest\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study and a set made of it, without a report: drawing takes seconds."""
    home = tmp_path_factory.mktemp("home")
    reference = {"engine": "ddp", "transport": "gloo"}
    plant(home / "study", smoke(), reference=reference, launches=5, confirm=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report, "write", lambda *_: [])
        publish(home / "study", home / "results" / "published", "here")
    return home


@pytest.fixture
def page(home: Path, tmp_path: Path) -> Path:
    """A page beside that set, its table not yet made."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    (tmp_path / "README.md").write_text(TEXT)
    return tmp_path / "README.md"


def test_the_readme_of_this_checkout_fits_its_sets() -> None:
    text = readme.FILE.read_text(encoding="utf-8")
    if not readme.sets(text):
        pytest.skip("README.md shows no published set yet")
    assert readme.render(text, readme.FILE.parent) == text, "python -m analysis.readme"


def test_a_table_is_made_and_the_rest_stays(page: Path) -> None:
    assert readme.main([str(page)]) == 0
    text = page.read_text()
    assert text.startswith(TEXT[: TEXT.index("old")])
    assert text.endswith(f"\n{readme.END}\n\nrest\n")
    rows = [line for line in text.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert len(rows) == 14
    row = next(row for row in rows if row.startswith("| 2 | horovod/gloo |"))
    assert "slower" in row
    assert "[records and notes](results/published/here/planted)" in text
    assert "| interval |" in text.replace("  ", " ")
    assert row.count("|") == 10
    before = page.read_bytes()
    assert readme.main([str(page)]) == 0
    assert page.read_bytes() == before, "again: the same"


def test_a_change_of_page_is_noticed_and_nothing_written(page: Path) -> None:
    assert readme.main([str(page), "--check"]) == 1
    assert page.read_text() == TEXT
    readme.main([str(page)])
    assert readme.main([str(page), "--check"]) == 0
    page.write_text(page.read_text().replace("horovod/gloo", "horovod/glue", 1))
    assert readme.main([str(page), "--check"]) == 1


def test_a_change_of_set_is_noticed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(page.parent.rglob("published/**/record.json"))
    path.write_text(path.read_text() + " ")
    assert readme.main([str(page), "--check"]) == 2
    assert "is not what was published" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# no table\n", "put the lines <!-- results: results/published/MACHINE/STUDY -->"),
        (f"{readme.BEGIN.format('a')}\n", "put the lines"),
        (TEXT + readme.BEGIN.format("a"), "without its"),
        (TEXT + readme.END, "without its"),
        (f"{readme.BEGIN.format('nowhere')}\n{readme.END}\n", "nowhere: not a published set"),
        (f"{readme.BEGIN.format('study')}\n{readme.END}\n", "study: not a published set"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(
    page: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page.write_text(text)
    assert readme.main([str(page)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert page.read_text() == text
