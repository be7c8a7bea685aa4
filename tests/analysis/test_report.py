"""What people read: the terminal, the Markdown, the CSV and the figures, also with names that want to be markup."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import xml.etree.ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure
from planted import Plant, contestant, make_case, smoke
from rich.console import Console

from analysis import content, export, markdown, plots, report, summary, table, terminal, words
from analysis.document import Bullets, Code, Document, Paragraph, Section
from analysis.rows import Summary
from benches import record
from benches.errors import UserError

Make = Callable[..., Path]
HOSTILE = "<script>alert(1)</script>\n../x,|*a*`[l](http://u)$x$[red]@me #1\x1b[31m\u202e"
DDP = {"engine": "ddp", "transport": "gloo"}


def reduced(folder: Path) -> Summary:
    return summary.reduce(table.read(folder))


def hostile_plants() -> list[Plant]:
    point = {HOSTILE: HOSTILE}
    failed = record.Parity(passed=False, error=1.7976931348623157e308, bound=1e-7)
    return [
        Plant(make_case("ddp", "gloo", 2, model=HOSTILE, threads=8), 0.05, name=HOSTILE, point=point),
        Plant(make_case("horovod", "mpi", 2, model=HOSTILE, threads=8), 0.06, name="=1+1", point=point),
        Plant(make_case("horovod", "gloo", 2, model=HOSTILE, threads=8), 0.06, point=point, parity=failed),
    ]


def printed(found: Summary, width: int, colour: bool = False) -> str:
    stream = io.StringIO()
    system = "truecolor" if colour else None
    terminal.show(found, Console(file=stream, width=width, force_terminal=colour, color_system=system))
    return stream.getvalue()


@pytest.fixture
def smoke_study(study_folder: Make) -> Path:
    return study_folder(smoke(), reference=DDP)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_row_within_its_width(smoke_study: Path, width: int) -> None:
    text = printed(reduced(smoke_study), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("resnet18_64, 2 ranks, default against default: ")
    assert any(line.startswith("resnet18_64, 2 ranks: ") for line in lines)
    rows = [line for line in lines if re.match(r" +[12] (local|ddp/|horovod/)", line)]
    assert len(rows) == 14, "each contestant on one line"
    assert all("(" in row and " 3 " in row for row in rows), "spread and n"
    assert "verdict\n" in re.sub(" +", " ", text).replace(" \n", "\n")
    assert "(provisional)" in text


def test_the_wide_table_adds_interval_and_parity(smoke_study: Path) -> None:
    narrow, wide = (printed(reduced(smoke_study), width) for width in (80, 120))
    assert "interval" in wide.replace("vs, interval:", "")
    assert wide.count("passed") == 14
    assert "passed" not in narrow


def test_the_terminal_needs_no_colour(smoke_study: Path) -> None:
    found = reduced(smoke_study)
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", printed(found, 120, colour=True))
    assert coloured == printed(found, 120)


def test_a_terminal_gets_no_escape_sequences_from_names(study_folder: Make) -> None:
    found = reduced(study_folder(hostile_plants()))
    for width in (80, 120):
        text = printed(found, width)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert max(map(len, text.splitlines())) <= width


def test_failures_show_the_size_of_the_error_and_the_log(study_folder: Make) -> None:
    plants = smoke()[4:7]
    plants[1].parity = record.Parity(passed=False, error=0.25, bound=1e-7)
    plants[2].launches = 0
    folder = study_folder(plants, launches=1)
    out = folder / "launches" / plants[2].case.id / "0"
    case = plants[2].case
    tail = [f"line {number}" for number in range(30)]
    record.write(
        out,
        record.Header(
            case_id=case.id, case=case, launch=0, status="failed", reason="rank 1: killed by SIGKILL in warmup",
            log_tail=tail, command="mpirun", started_at="2026-01-01T00:00:00+00:00", duration_s=1, world_size=0,
        ),
        None,
    )  # fmt: skip
    text = printed(reduced(folder), 120)
    assert "(error 0.25, bound 1e-07)" in text
    assert "rank 1: killed by SIGKILL in warmup" in text
    assert "line 29" in text
    assert "line 2\n" not in text
    assert "not ranked" in text


def test_many_warnings_are_cut_short_and_counted(study_folder: Make) -> None:
    found = reduced(study_folder(smoke()[:1]))
    found.warnings.extend(f"doubt {number}" for number in range(30))
    text = printed(found, 80)
    assert "more warnings stand in the report" in text
    assert "doubt 29" not in text


def test_the_report_holds_verdict_table_pictures_method_and_provenance(smoke_study: Path, tmp_path: Path) -> None:
    files = report.write(smoke_study, tmp_path / "out")
    figures = {"step_times", "ratios", "transports", "traces", "breakdown", "efficiency"}
    assert {path.name for path in files if path.suffix != ".tex"} == {
        "report.html", "report.md", "contestants.csv", "comparisons.csv", "questions.csv", "failures.csv",
        "launches.csv",
        *(f"{name}.{kind}" for name in figures for kind in ("svg", "png")),
        *(f"{name}.csv" for name in figures - {"step_times", "ratios"}),
    }  # fmt: skip
    assert files[0].name == "report.html"
    text = (tmp_path / "out" / "report.md").read_text()
    titles = re.findall("^## (.*)", text, re.MULTILINE)
    assert titles == [
        "Decision", "Evidence", "Why", "What would change it", "Caveats and warnings", "Scaling", "Beyond speed",
        "Method", "Provenance",
    ]  # fmt: skip
    assert f"hash {table.read(smoke_study).study.hash}" in text
    assert "| host.cpu | Test CPU | all |" in text
    assert f"ringduel report {smoke_study}" in text
    assert text.count("python -m benches.worker") == 14
    for name in re.findall(r"\]\(([^)]*)\)", text):
        assert (tmp_path / "out" / name).exists()


def test_the_same_records_give_the_same_bytes(study_folder: Make, tmp_path: Path) -> None:
    folder = study_folder(smoke()[4:7])
    one, other = (report.write(folder, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


@pytest.mark.parametrize("plants", [[], smoke()[:1], hostile_plants()[2:]], ids=["nothing", "one", "failure"])
def test_a_report_comes_out_of_whatever_is_there(study_folder: Make, tmp_path: Path, plants: Sequence[Plant]) -> None:
    chosen = list(plants) or [Plant(make_case("ddp", "gloo", 2), 0.05, launches=0)]
    files = report.write(study_folder(chosen), tmp_path / "out", ("md", "html", "latex", "csv"))
    assert "## Decision" in files[0].read_text()


def test_formats_are_chosen_and_unknown_ones_refused(study_folder: Make, tmp_path: Path) -> None:
    folder = study_folder(smoke()[4:6])
    assert {path.suffix for path in report.write(folder, tmp_path / "out", ("csv",))} == {".csv"}
    with pytest.raises(UserError, match="format=pdf: not a format; choices: html, md, csv, latex"):
        report.write(folder, tmp_path / "out", ("pdf",))


def test_a_folder_that_cannot_be_written_is_the_users_mistake(study_folder: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        report.write(study_folder(smoke()[4:5]), tmp_path / "file" / "out", ("csv",))


def test_names_cannot_become_markup(study_folder: Make, tmp_path: Path) -> None:
    text = report.write(study_folder(hostile_plants()), tmp_path, ("md",))[0].read_text()
    html = MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text)
    assert "<script" not in html
    assert "<em>" not in html
    assert not re.search(r'href="(?!#)', html)
    assert html.count("<img") == 3
    assert {len(row.split("</td>")) for row in re.findall("<tr>(?:(?!</tr>).)*</td>", html, re.DOTALL)} <= {
        4,
        5,
        7,
        8,
        10,
        12,
    }
    assert "error not finite" in html


@pytest.mark.parametrize(
    "text",
    ["- list", "+ list", "# head", "1. item", "12) item", "> quote", "---", "`code`", "_a_ __b__ *c*", "~~gone~~",
     "a|b", "[l](u)", "![i](u)", "<b>", "&lt;", "\\", "a\\|b", "$x$", "line\nbreak", "snake_case_name", "    indented"],
)  # fmt: skip
def test_escaped_text_reads_as_it_was(text: str) -> None:
    html = MarkdownIt("commonmark").enable("table").enable("strikethrough").render(markdown.escape(text)).strip()
    plain = re.sub("&(lt|gt|amp|quot);", lambda found: {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}[found[1]], html)
    assert plain == f"<p>{words.clean(text).strip()}</p>"


@pytest.mark.parametrize("text", ["https://evil.example", "www.evil.example", "@team", "#12", "GH :smile: x"])
def test_bare_links_mentions_and_emoji_are_broken(text: str) -> None:
    assert "\\" in markdown.escape(text)


def test_code_cannot_leave_its_fence() -> None:
    text = "echo hi\n```\n# not a heading\n````\x1b"
    rendered = markdown.render(Document("t", [Section("s", [Code(text), Paragraph("after"), Bullets(["- x"])])]))
    html = MarkdownIt("commonmark").render(rendered)
    assert html.count("<h1>") == 1
    assert "# not a heading" in html
    assert "<p>after</p>" in html


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1"])
def test_a_spreadsheet_computes_nothing(text: str) -> None:
    assert export.harmless(text).startswith("'")


def test_csv_holds_each_row_on_one_line_and_numbers_unrounded(study_folder: Make, tmp_path: Path) -> None:
    folder = study_folder(hostile_plants())
    report.write(folder, tmp_path, ("csv",))
    for name, count in {"contestants": 3, "comparisons": 1, "failures": 1, "launches": 9}.items():
        text = (tmp_path / f"{name}.csv").read_text()
        assert len(text.splitlines()) == count + 1
        assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1
    found = reduced(folder)
    contestants = pd.read_csv(tmp_path / "contestants.csv")
    assert found.rows[0].step_time_s
    assert contestants["step_time_s"][0] == found.rows[0].step_time_s.value
    assert contestants["name"][1] == "'=1+1"


def texts(figure: Figure) -> str:
    found = [text.get_text() for axis in figure.axes for text in (axis.title, *axis.get_yticklabels())]
    found += [legend.get_title().get_text() for legend in figure.legends]
    return "\n".join([*found, figure.get_suptitle()])


def test_step_times_show_every_launch_and_say_what_was_found(study_folder: Make) -> None:
    plants = smoke()[4:7]
    figure = plots.step_times(reduced(study_folder(plants, launches=4)))
    (axis,) = figure.axes
    points = [line for line in axis.lines if line.get_marker() in ("o", "s", "D", "^")]
    assert [len(line.get_xdata()) for line in points] == [4, 4, 4]
    assert "resnet18_64, 2 ranks: " in axis.get_title(loc="left")
    assert "4 launches each" in axis.get_title(loc="left").replace("\n", " ")


def test_the_ratio_plot_shows_margin_and_marks(study_folder: Make) -> None:
    plants = [
        Plant(make_case(e, "gloo", 2, threads=8), s, launch_sd=0.001) for e, s in (("ddp", 1.0), ("horovod", 1.2))
    ]
    figure = plots.ratios(reduced(study_folder(plants, margin=0.05)))
    (axis,) = figure.axes
    band = axis.patches[0].get_extents().transformed(axis.transData.inverted())
    assert (band.x0, band.x1) == pytest.approx((1 / 1.05, 1.05))
    assert "1 slower (3 launches each, provisional)" in texts(figure)
    assert "[oversubscribed]" in texts(figure)


def test_an_interval_beyond_the_plot_ends_in_an_arrow(study_folder: Make) -> None:
    (axis,) = plots.ratios(reduced(study_folder(smoke()[4:6], launches=1))).axes
    assert {"<", ">"} <= {line.get_marker() for line in axis.lines}


def test_figures_of_hostile_names_can_be_drawn(study_folder: Make) -> None:
    found = reduced(study_folder(hostile_plants()))
    for picture in content.build(found).pictures():
        stream = io.StringIO()
        picture.figure.savefig(stream, format="svg")
        assert "<script" not in stream.getvalue()
        xml.etree.ElementTree.fromstring(stream.getvalue())


def test_a_large_sweep_is_cut_and_the_rest_counted(study_folder: Make) -> None:
    plants = [
        Plant(make_case("ddp", "gloo", 1, seed=seed), 0.05, name=f"ddp-seed={seed}", launch_sd=0.001)
        for seed in range(plots.MOST_ROWS + 5)
    ]
    found = reduced(study_folder(plants, launches=2, rounds=1))
    for figure, more in ((plots.step_times(found), 5), (plots.ratios(found), 4)):
        assert sum(len(axis.get_yticklabels()) for axis in figure.axes) == plots.MOST_ROWS
        assert f"{more} more stand in the table" in texts(figure)


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.0312, "3.1 % slower"),
        (0.88, "12 % faster"),
        (1.0001, "the same"),
        (3.3, "3.3 × as long"),
        (1.98, "98 % slower"),
    ],
)
def test_changes_in_words(ratio: float, said: str) -> None:
    assert words.percent(ratio) == said


@pytest.mark.parametrize(
    ("share", "said"), [(0.004, "±0.4 %"), (0.5, "±50 %"), (52.0, "a factor of 53"), (float("inf"), "without interval")]
)
def test_half_widths_are_said_as_what_they_are(share: float, said: str) -> None:
    assert words.half_width(share) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.012345, "0.0123"), (9.999, "10.0"), (123.4, "123"), (26475, "26500"), (0, "0"), (0.99951, "1.00")],
)
def test_significant_digits(value: float, said: str) -> None:
    assert words.significant(value) == said


def test_launches_that_were_not_alive_together_are_told(study_folder: Callable[..., Path]) -> None:
    plants = [Plant(make_case(engine, "gloo", 2), 0.1) for engine in ("ddp", "horovod")]
    keys = [contestant(one).key for one in plants]
    folder = study_folder(plants, launches=3)
    for own, other in (keys, keys[::-1]):
        for number in range(3):
            path = folder / "launches" / own / str(number) / "record.json"
            known = json.loads(path.read_text())
            known["beside"] = [] if number == 1 else [other]
            path.write_text(json.dumps(known))
    (line,) = [one for one in reduced(folder).warnings if "alive together" in one]
    assert line.startswith("horovod/gloo and ddp/gloo were not alive together in 1 of 3 launches")
    for key in keys:
        shutil.rmtree(folder / "launches" / key / "2")
    (line,) = [one for one in reduced(folder).warnings if "alive together" in one]
    assert " in 1 of 2 launches" in line, "one that does not exist was not alone"
