"""The page: one file, alone, escaped, in order, and told to those who do not see it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from planted import Plant, make_case, smoke
from test_report import DDP, HOSTILE, hostile_plants

from analysis import latex, report
from analysis.grids import Column, Grid

Make = Callable[..., Path]
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Elements with their attributes, and whether they close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def written(folder: Path, out: Path) -> str:
    (path,) = report.write(folder, out, ("html",))
    return path.read_text()


def test_the_page_stands_alone_and_in_order(study_folder: Make, tmp_path: Path) -> None:
    text = written(study_folder(smoke(), reference=DDP), tmp_path)
    page = Page(text)
    assert page.open == []
    links = [
        value for _, found in page.elements for key, value in found.items() if key in ("href", "src", "xlink:href")
    ]
    assert links
    assert all((link or "").startswith("#") for link in links)
    assert not re.search(r"url\((?!#)|@import", text)
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", text) == [
        "Decision", "Evidence", "Why", "What would change it", "Caveats and warnings", "Scaling", "Beyond speed",
        "Method", "Provenance",
    ]  # fmt: skip
    assert text.index("is faster</td>") < text.index('id="evidence"'), "the answer comes first"


def test_the_page_is_told_to_those_who_do_not_see_it(study_folder: Make, tmp_path: Path) -> None:
    page = Page(written(study_folder(smoke(), reference=DDP), tmp_path))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("nav")) == 1
    assert all(found.get("scope") in ("col", "row") for found in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    drawings = page.all("svg")
    assert len(drawings) >= 4
    assert all(found["role"] == "img" and len(found["aria-label"] or "") > 40 for found in drawings)
    ids = Counter(found["id"] for _, found in page.elements if "id" in found)
    assert max(ids.values()) == 1


def test_names_cannot_become_markup(study_folder: Make, tmp_path: Path) -> None:
    text = written(study_folder(hostile_plants()), tmp_path)
    page = Page(text)
    assert len(page.all("script")) == 1
    assert "alert(1)" not in re.sub(r"&lt;script&gt;alert\(1\)&lt;/script&gt;", "", text)
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert not [key for _, found in page.elements for key in found if key.startswith("on")]


@pytest.mark.parametrize("text", ["</style>", "</script>", '"><svg onload=x>', "{{ 1 + 1 }}", "-->", "]]>"])
def test_what_breaks_out_of_markup_stays_text(study_folder: Make, tmp_path: Path, text: str) -> None:
    plants = [Plant(make_case(e, "gloo", 2, model=text), 0.05, name=f"{e}{text}") for e in ("ddp", "horovod")]
    page = Page(written(study_folder(plants), tmp_path))
    assert page.open == []
    assert len(page.all("script")) == len(page.all("style")) == 1
    assert len(page.all("svg")) == len(page.all("figure"))


@pytest.mark.parametrize("text", [HOSTILE, r"\input{/etc/passwd}", "50 % & $x^2$ #1 ~ {a}", "^^41"])
def test_a_latex_table_holds_no_command_of_a_record(text: str) -> None:
    made = latex.render(Grid(text, [Column(text)], [[text]]))
    body = made.split(r"\midrule")[1].split(r"\bottomrule")[0]
    for escaped in set(latex.SPECIAL.values()) | {r"\_", r"\\"}:
        body = body.replace(escaped, "")
    assert not re.search(r"[\\{}$&#%^~_]", body)
    assert made.count("\n%") == 0
