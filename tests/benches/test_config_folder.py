"""A study's folder: frozen once, taken up again, refused to another study, and nothing in it lost."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from composing import resolved, study

from benches import commands
from benches.driver import due
from benches.errors import UserError
from benches.folder import STUDY, StudyFolder, differences, load_study, open_study
from benches.spec import Study, load_case


@pytest.fixture(scope="module")
def smoke() -> Study:
    return study("experiment=smoke")


def record(folder: StudyFolder, case: int, number: int, status: str = "ok") -> Path:
    path = folder.launch(folder.study.contestants[case], number)
    path.mkdir(parents=True)
    (path / "record.json").write_text(json.dumps({"status": status}))
    return path


def missing(folder: StudyFolder) -> set[tuple[str, int]]:
    """Key and number of each launch that is due."""
    return {(turn.contestant.key, turn.launch) for turn in due(folder)[0]}


def test_what_is_frozen_reads_back_the_same(smoke: Study, tmp_path: Path) -> None:
    folder = open_study(smoke, tmp_path / "new" / "results")
    assert folder.path == tmp_path / "new" / "results" / "smoke"
    loaded = load_study(folder.path)
    assert loaded.study == smoke
    assert loaded.study.hash == smoke.hash
    for contestant in smoke.contestants:
        assert load_case(folder.case_file(contestant.case)) == contestant.case
    assert "&id" not in (folder.path / STUDY).read_text()
    assert not [path for path in folder.path.rglob(".*") if path.is_file()]


def test_the_next_commands_are_those_that_were_typed(
    smoke: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["experiment=smoke", "study.launches=3"]
    commands._show_next(StudyFolder(tmp_path / "smoke", smoke), words, Path("my conf"), False, [])
    own = "--config-dir 'my conf' experiment=smoke"
    lines = [line.partition(":")[::2] for line in capsys.readouterr().out.splitlines() if "ringduel" in line]
    assert {name: text.strip() for name, text in lines} == {
        "Interrupted. To go on": f"ringduel run {own} study.launches=3",
        "Render it again": f"ringduel report {tmp_path}/smoke",
        "The exact commands": f"ringduel plan {own} study.launches=3",
        "More launches (surer)": f"ringduel run {own} study.launches=6 study.name=smoke-6",
    }


def test_values_that_yaml_could_bend_survive(tmp_path: Path) -> None:
    words = (
        "cluster.env.A='no'",
        "cluster.env.B='1e5'",
        "cluster.env.C='é\"\\' #: x'",
        "optimizer.lr=1e-05",
        "engine=ddp",
    )
    found = study(*words)
    open_study(found, tmp_path)
    assert load_study(tmp_path / "study").study == found
    assert found.contestants[0].case.cluster.env["B"] == "1e5"


def test_the_same_study_goes_on_with_what_is_missing(smoke: Study, tmp_path: Path) -> None:
    folder = open_study(smoke, tmp_path)
    every = {(one.key, number) for number in range(smoke.launches) for one in smoke.contestants}
    assert missing(folder) == every
    record(folder, 0, 0)
    record(folder, 2, 1, "failed")
    again = open_study(smoke, tmp_path)
    assert missing(again) == every - {(smoke.contestants[0].key, 0), (smoke.contestants[2].key, 1)}


def test_an_interrupted_launch_is_set_aside_and_missing_again(smoke: Study, tmp_path: Path) -> None:
    folder = open_study(smoke, tmp_path)
    key = smoke.contestants[1].key
    for tries in (1, 2):
        record(folder, 1, 0, "interrupted")
        folder = open_study(smoke, tmp_path)
        assert (key, 0) in missing(folder)
        assert len(list((folder.path / "aside" / key).glob("0.*/record.json"))) == tries


def test_a_copy_has_launches_of_its_own_and_the_case_of_its_original(tmp_path: Path) -> None:
    found = resolved("study.launches=1").study
    (copy,) = [one for one in found.contestants if one.copy]
    folder = open_study(found, tmp_path)
    assert folder.case_file(copy.case) == folder.case_file(found.contestants[0].case)
    record(folder, found.contestants.index(copy), 0, "interrupted")
    assert (copy.key, 0) not in missing(folder)
    again = open_study(found, tmp_path)
    assert missing(again) == {(one.key, 0) for one in found.contestants}
    assert (folder.path / "aside" / copy.key / "0.0" / "record.json").exists()


def test_a_launch_cut_short_without_a_record_is_missing(smoke: Study, tmp_path: Path) -> None:
    folder = open_study(smoke, tmp_path)
    folder.launch(smoke.contestants[0], 0).mkdir(parents=True)
    assert (smoke.contestants[0].key, 0) in missing(folder)


def test_a_case_shared_by_points_is_launched_once(tmp_path: Path) -> None:
    found = study("study.axes.ddp.bucket_cap_mb=[1,25]", "study.launches=1")
    assert len(found.contestants) == 4
    assert len(due(open_study(found, tmp_path))[0]) == 3


def test_other_content_is_refused_with_the_differences(smoke: Study, tmp_path: Path) -> None:
    path = open_study(smoke, tmp_path).path
    before = (path / STUDY).read_bytes()
    other = study("experiment=smoke", "block_steps=7", "study.launches=4", "~study.contestants.local", "seed=3")
    with pytest.raises(UserError) as caught:
        open_study(other, tmp_path)
    line = str(caught.value)
    assert line.startswith(f"study.name=smoke: {path} holds another study: study.launches 3, now 4; ")
    assert "seed 1, now 3" in line
    assert line.endswith("choose another study.name")
    assert (path / STUDY).read_bytes() == before


def test_differences_stand_once_however_many_cases_have_them(smoke: Study) -> None:
    assert differences(smoke, study("experiment=smoke", "seed=3")) == ["seed 1, now 3"]
    fewer = study("experiment=smoke", "model=digits", "~study.contestants.local")
    gone = differences(smoke, fewer)
    assert "contestant local (model=digits cluster.ranks_per_node=1) is gone" in gone
    assert differences(fewer, smoke)[-1].endswith("is new")
    assert differences(smoke, smoke) == []


def test_the_order_of_contestants_is_content_too(smoke: Study, tmp_path: Path) -> None:
    open_study(smoke, tmp_path)
    turned = msgspec.structs.replace(smoke, contestants=smoke.contestants[::-1])
    with pytest.raises(UserError, match="the order of contestants"):
        open_study(turned, tmp_path)


def test_a_folder_that_is_no_study_is_left_alone(smoke: Study, tmp_path: Path) -> None:
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="is no study and not empty; choose another name"):
        open_study(smoke, tmp_path)
    assert [path.name for path in (tmp_path / "smoke").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["../x", "/x", ".", "a/b", "a\n", ""])
def test_no_name_leads_out_of_the_results(smoke: Study, tmp_path: Path, name: str) -> None:
    # The constructor checks nothing, so the folder does.
    with pytest.raises(UserError, match=r"^study.name="):
        open_study(msgspec.structs.replace(smoke, name=name), tmp_path / "results")
    assert not list(tmp_path.iterdir())


def test_results_that_cannot_be_written(smoke: Study, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^results=.*file: cannot be written: Not a directory$"):
        open_study(smoke, tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda text: text.replace("margin: 0.02", "margin: 0.03"), "was changed since it was frozen"),
        (lambda text: text.replace("schema_version: 1", "schema_version: 9"), "has schema version 9"),
        (lambda text: "x: [", "cannot be read as a study"),
        (lambda text: "- 1", "cannot be read as a study"),
        (lambda text: text.replace("margin: 0.02", "margin: x"), "margin"),
    ],
)
def test_a_damaged_study_is_refused_in_one_line(smoke: Study, tmp_path: Path, change: object, line: str) -> None:
    path = open_study(smoke, tmp_path).path
    (path / STUDY).write_text(change((path / STUDY).read_text()))  # type: ignore[operator]
    with pytest.raises(UserError, match=line) as caught:
        load_study(path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a study"):
        load_study(tmp_path)
