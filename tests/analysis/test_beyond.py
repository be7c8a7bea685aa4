"""Beyond speed: what was measured stands in the table with its source; what cannot be read is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from planted import smoke

from analysis import report
from benches import measured
from benches.measured import BEYOND, Beyond, Finding

Make = Callable[..., Path]
HOSTILE = "<script>x</script>|a|"


def found(*rows: tuple[str, str, str]) -> Beyond:
    findings = tuple(Finding(topic=topic, ddp=ddp, horovod=horovod, source="how") for topic, ddp, horovod in rows)
    return Beyond(measured_at="2026-02-03T00:00:00+00:00", machine="Test CPU, 8 cores", findings=findings)


def test_what_was_measured_stands_in_the_report_with_source_and_day(study_folder: Make, tmp_path: Path) -> None:
    folder = study_folder(smoke()[4:7])
    measured.write(folder, found(("size, MiB", "900", "931"), ("nothing", "1", ""), (HOSTILE, HOSTILE, HOSTILE)))
    text = report.write(folder, tmp_path, ("md",))[0].read_text()
    assert "| size, MiB | 900 | 931 | how; beyond.json, 2026-02-03 |" in text
    assert "| nothing |" not in text, "one side alone is no comparison"
    assert "<script" not in text


def test_without_the_file_only_records_speak(study_folder: Make, tmp_path: Path) -> None:
    assert BEYOND not in report.write(study_folder(smoke()[4:7]), tmp_path, ("md",))[0].read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"measured_at": 1}'])
def test_a_file_that_cannot_be_read_is_left_out_and_said(study_folder: Make, tmp_path: Path, text: str) -> None:
    folder = study_folder(smoke()[4:7])
    (folder / BEYOND).write_text(text)
    said = report.write(folder, tmp_path, ("html",))[0].read_text()
    assert "beyond.json cannot be read" in said


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    measured.write(tmp_path, found())
    with pytest.raises(FileExistsError):
        measured.write(tmp_path, found())
