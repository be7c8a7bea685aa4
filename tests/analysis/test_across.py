"""Two studies side by side: joined on case, intervals that hold, and what a regression is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import PASSED, contestant, header, plant, smoke

from analysis import across, markdown
from benches import record
from benches.commands import compare_command
from benches.errors import UserError


def planted(tmp_path: Path, factor: float = 1.0, **changes: object) -> tuple[Path, Path]:
    """A study and the same with the first contestant slower by `factor`."""
    plants = [replace(one, launch_sd=0.005) for one in smoke()[4:7]]
    plant(tmp_path / "a", plants, seed=1, launches=6)
    later = [replace(plants[0], step_s=plants[0].step_s * factor, **changes), *plants[1:]]
    plant(tmp_path / "b", later, seed=2, launches=6)
    return tmp_path / "a", tmp_path / "b"


def test_a_planted_regression_is_found_and_nothing_else(tmp_path: Path) -> None:
    found = across.compare(*planted(tmp_path, 1.1))
    assert [change.title for change in found.regressions] == ["ddp/gloo"]
    ratio = found.changes[0].ratio
    assert ratio is not None
    assert ratio.low < 1.1 < ratio.high
    assert ratio.level == pytest.approx(1 - 0.05 / 3)


def test_equal_studies_have_no_regression(tmp_path: Path) -> None:
    found = across.compare(*planted(tmp_path))
    assert not found.regressions
    assert "none that the data support" in markdown.render(across.document(found))


@pytest.mark.parametrize(
    ("factors", "said"), [((1.1, 1.2, 1.3), True), ((1.1, 1.0, 1.3), False), ((0.9, 1.2, 1.3), False)]
)
def test_where_all_moved_one_way_the_machine_is_suspected(
    tmp_path: Path, factors: tuple[float, ...], said: bool
) -> None:
    a, _ = planted(tmp_path)
    plants = [replace(one, launch_sd=0.005) for one in smoke()[4:7]]
    later = [replace(one, step_s=one.step_s * factor) for one, factor in zip(plants, factors, strict=True)]
    plant(tmp_path / "c", later, seed=2, launches=6)
    warnings = across.compare(a, tmp_path / "c").warnings
    assert len([line for line in warnings if line.startswith("all 3 cases moved one way, the least is ")]) == said


def test_what_no_longer_runs_is_a_regression(tmp_path: Path) -> None:
    found = across.compare(*planted(tmp_path, parity=type(PASSED)(passed=False, error=1.0, bound=1e-7)))
    assert [change.verdict for change in found.regressions] == ["broken"]
    assert "it ran well in a and fails in b" in markdown.render(across.document(found))
    back = across.compare(tmp_path / "b", tmp_path / "a")
    assert back.changes[0].verdict == "mended"
    assert not back.regressions


def test_other_machines_and_versions_are_said(tmp_path: Path) -> None:
    a, b = planted(tmp_path)
    for path in b.rglob("record.json"):
        path.write_text(path.read_text().replace("Test CPU", "Other CPU").replace("2.14.1", "2.15.0"))
    warnings = across.compare(a, b).warnings
    assert (
        "the machines differ (Test CPU, 8 cores against Other CPU, 8 cores): a change may be the machine's" in warnings
    )
    assert "versions differ: torch 2.14.1 → 2.15.0" in warnings


def test_studies_without_a_common_case_are_refused(tmp_path: Path) -> None:
    plant(tmp_path / "a", smoke()[4:5])
    plant(tmp_path / "b", smoke()[5:6])
    with pytest.raises(UserError, match="shares no case"):
        across.compare(tmp_path / "a", tmp_path / "b")


def test_cases_of_one_study_only_are_counted(tmp_path: Path) -> None:
    plant(tmp_path / "a", smoke()[4:7])
    plant(tmp_path / "b", smoke()[4:5])
    assert "2 cases of a only: not compared" in across.compare(tmp_path / "a", tmp_path / "b").warnings


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(4)
    hits = 0
    for _ in range(2000):
        a, b = random.normal(0, 0.01, 5), random.normal(np.log(1.05), 0.03, 7)
        ratio = across.welch(a, b, 0.95)
        hits += ratio.low <= 1.05 <= ratio.high
    assert 0.93 <= hits / 2000 <= 0.97


@pytest.mark.parametrize(("factor", "strict", "status"), [(1.1, True, 1), (1.1, False, 0), (1.0, True, 0)])
def test_a_regression_fails_only_where_that_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, strict: bool, status: int
) -> None:
    a, b = planted(tmp_path, factor)
    assert compare_command(str(a), str(b), tmp_path, strict, as_json=False) == status
    assert "## Regressions" in capsys.readouterr().out


def test_json_says_what_the_table_says(tmp_path: Path) -> None:
    found = across.plain(across.compare(*planted(tmp_path, 1.1)))
    assert found["regressions"] == 1
    first = found["changes"][0]  # type: ignore[index]
    assert first["regression"] is True
    assert first["ratio"]["n"] == 6


def test_what_was_interrupted_is_not_broken_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    plants = [replace(one, launch_sd=0.005) for one in smoke()[4:7]]
    plant(tmp_path / "a", plants, launches=3)
    plant(tmp_path / "b", [replace(plants[0], launches=0), *plants[1:]], launches=3)
    cut = header(plants[0].case, 0, status="interrupted", reason="by SIGINT")
    record.write(tmp_path / "b" / "launches" / contestant(plants[0]).key / "0", cut, None)
    found = across.compare(tmp_path / "a", tmp_path / "b")
    assert not found.regressions
    assert len(found.changes) == 2
    assert "1 case of both: no sound launch in either, or not run in one: not compared" in found.warnings
