"""Publishing: the set is whole, says nothing of people and machines, loads as before, and nothing is overwritten."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from planted import PASSED, Plant, header, make_case, plant, smoke

from analysis import across, library, report, summary, table
from benches import measured, record
from benches.cli import main
from benches.errors import UserError
from benches.folder import load_study
from benches.manifest import MANIFEST
from benches.measured import Beyond, Finding
from benches.publish import publish

WRITE = report.write
HOST, USER = "gpu17.example.org", "joe"
SECRET = "0123456789abcdef"
FAILED = record.Parity(passed=False, error=1.0, bound=1e-7)


def telling(case: Any, launch: int) -> dict[str, Any]:
    """What a header may hold of people and machines."""
    key = case.id
    study = f"/home/{USER}/work/results/runs/planted"
    command = (
        f"(cd /home/{USER}/work && HOROVOD_SECRET_KEY={SECRET} /home/{USER}/.venv/bin/mpirun --host {HOST}:2 "
        f"/home/{USER}/.venv/bin/python -m benches.worker {study}/cases/{key}.yaml "
        f"--out {study}/launches/{key}/{launch})"
    )
    ranks = [{"host": HOST, "threads": 1, "environment": {"OMPI_MCA_x": f"/scratch/{USER}"}}] * case.cluster.world_size
    host = {"name": HOST, "cpu": "Test CPU", "cpus": 8, "memory_mb": 16000, "nics": [], "gpus": []}
    return {
        "command": command,
        "warnings": [f"{USER}@{HOST}: 10.11.12.13 is slow"],
        "effective": {"mpi": f"Open MPI v5.0.11, package: Open MPI {USER}@builder7 Distribution"},
        "provenance": {
            "versions": {"python": "3.11.1", "torch": "2.14.1", "nvidia": "13.0.3.0"},
            "host": host,
            "ranks": ranks,
            "site": {"kind": "hosts", "nic": "eth0", "hosts": [{"host": HOST, "name": "gpu17"}]},
        },
    }


def tell(folder: Path) -> None:
    """Every record of a study gets what `telling` says."""
    for path in folder.rglob(record.HEADER):
        old = record.read(path.parent)
        new = msgspec.structs.replace(old, **telling(old.case, old.launch))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(new), indent=1))


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds: only where the report itself is looked at."""
    monkeypatch.setattr(report, "write", lambda *_: [])


@pytest.fixture
def drawn(undrawn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", WRITE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished study whose records tell much."""
    plant(tmp_path / "runs" / "planted", smoke()[4:7], reference={"engine": "ddp"}, launches=2, confirm=False)
    tell(tmp_path / "runs" / "planted")
    return tmp_path / "runs" / "planted"


def texts(folder: Path) -> dict[str, str]:
    """Every file of a set that is text, by name."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".parquet", ".png")]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


@pytest.mark.usefixtures("drawn")
def test_a_set_holds_what_it_should_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    (folder / "launches" / "notes").mkdir()
    (folder / "launches" / "notes" / "x.log").write_text("secret")
    (folder / "aside" / "k" / "0.0").mkdir(parents=True)
    found = publish(folder, tmp_path / "published", None)
    assert found.path == tmp_path / "published" / "test-cpu-8-cores" / "planted"
    names = {re.sub(r"[0-9a-f]{12}", "ID", name) for name in texts(found.path)}
    assert {name for name in names if not name.startswith("report/")} == {
        "study.yaml", "NOTES.md", MANIFEST, "cases/ID.yaml", *(f"launches/ID/{k}/record.json" for k in range(2))
    }  # fmt: skip
    assert {"report/report.html", "report/report.md", "report/step_times.svg"} <= names
    assert len(list(found.path.rglob("samples.parquet"))) == 3 * 2
    assert "1 launch was set aside" in (found.path / "NOTES.md").read_text()
    assert sorted(path.name for path in found.path.parent.iterdir()) == ["planted"], "nothing is left beside it"


@pytest.mark.usefixtures("drawn")
def test_nothing_of_people_and_machines_is_in_it(folder: Path, tmp_path: Path) -> None:
    found = publish(folder, tmp_path / "published", None)
    told = (USER, HOST, "gpu17", "builder7", SECRET, "10.11.12.13", "/home", "/scratch", str(tmp_path))
    for name, text in texts(found.path).items():
        assert not [word for word in told if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)], name
    notes = (found.path / "NOTES.md").read_text()
    for kind, count in found.replaced.items():
        assert re.search(rf"^\| {kind} \|.*\| {count} \|$", notes, re.MULTILINE), kind
    assert set(found.replaced) == {"secret", "path", "address", "host", "user"}


def test_the_commands_can_still_be_read(folder: Path, tmp_path: Path) -> None:
    found = publish(folder, tmp_path / "published", None)
    header = json.loads(next(found.path.rglob(record.HEADER)).read_text())
    assert header["command"].startswith("(cd {folder} && HOROVOD_SECRET_KEY={secret-1} {")
    assert f"{{study}}/cases/{header['case_id']}.yaml" in header["command"]
    assert header["provenance"]["versions"]["nvidia"] == "13.0.3.0", "four numbers of a version are no address"


def test_numbers_are_the_same_and_samples_byte_by_byte(folder: Path, tmp_path: Path) -> None:
    found = publish(folder, tmp_path / "published", None)
    for path in found.path.rglob("samples.parquet"):
        assert path.read_bytes() == (folder / path.relative_to(found.path)).read_bytes()
    before, after = (library.load(one).drop(columns="study") for one in (folder, found.path))
    pd.testing.assert_frame_equal(before, after)
    assert load_study(found.path).study == load_study(folder).study
    one, other = (summary.reduce(table.read(path)).plain() for path in (folder, found.path))
    assert one["comparisons"] == other["comparisons"]


def test_a_set_is_compared_with_what_it_came_from(folder: Path, tmp_path: Path) -> None:
    found = publish(folder, tmp_path / "published", None)
    changes = across.compare(found.path, folder).changes
    assert len(changes) == 3
    assert all(change.ratio and change.ratio.value == 1 for change in changes)


@pytest.mark.usefixtures("drawn")
def test_the_commands_take_a_set(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    published = "results/published/test-cpu-8-cores/planted"
    assert main(["publish", "planted", "--results", "runs"]) == 0
    assert published in capsys.readouterr().out
    before = {path: path.read_bytes() for path in Path(published).rglob("*") if path.is_file()}
    assert main(["report", published, "--format", "md"]) == 0
    assert Path("results/runs/planted.report/report.md").exists(), "nothing is written into the set"
    assert main(["compare", published, "runs/planted"]) == 0
    assert main(["report", published, "--format", "md", "--out", f"{published}/report"]) == 2
    assert "lies in a published set" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path(published).rglob("*") if path.is_file()} == before
    assert f"ringduel report {published}" in Path(published, "report", "report.md").read_text()
    assert f"ringduel report {published}" in Path(published, "NOTES.md").read_text()


def test_the_same_again_says_so_and_other_content_is_refused(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "published"
    first = publish(folder, home, "here")
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    again = publish(folder, home, "here")
    assert (first.new, again.new, again.path) == (True, False, first.path)
    path = next(folder.rglob(record.HEADER))
    path.write_text(path.read_text().replace("2026-01-01", "2026-01-02"))
    with pytest.raises(UserError, match=r"holds other content: launches/\w+/\d/record.json; nothing is overwritten"):
        publish(folder, home, "here")
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == before
    assert publish(folder, home, "there").new


def test_a_set_that_was_changed_is_read_by_nothing(folder: Path, tmp_path: Path) -> None:
    found = publish(folder, tmp_path / "published", None)
    path = next(found.path.rglob(record.HEADER))
    path.write_text(path.read_text().replace('"duration_s": 12.5', '"duration_s": 12.4'))
    for use in (library.load, table.read, lambda one: across.compare(one, folder)):
        with pytest.raises(UserError, match=r"is not what was published: launches/\w+/\d/record.json was changed"):
            use(found.path)
    with pytest.raises(UserError, match="was changed"):
        publish(folder, tmp_path / "published", None)


def test_a_case_that_names_a_host_gets_another_id_everywhere(tmp_path: Path) -> None:
    plants = []
    for engine in ("ddp", "horovod"):
        case = make_case(engine, "gloo", 2, python=f"/home/{USER}/venv/bin/python")
        cluster = msgspec.structs.replace(case.cluster, name="hosts", hosts=(f"{HOST}:2",), nodes=1)
        plants.append(Plant(msgspec.structs.replace(case, cluster=cluster), 0.1))
    plant(tmp_path / "runs", plants, reference={"engine": "ddp"})
    found = publish(tmp_path / "runs", tmp_path / "published", None)
    read = table.read(found.path)
    assert read.problems == []
    assert set(read.case_ids).isdisjoint(one.case.id for one in plants)
    assert {path.stem for path in (found.path / "cases").iterdir()} == set(read.case_ids)
    assert len(library.load(found.path)) == len(library.load(tmp_path / "runs"))
    (case, _) = (contestant.case for contestant in load_study(found.path).study.contestants)
    assert (case.cluster.hosts, case.python, case.cluster.name) == (("{host-1}:2",), "{path-1}/bin/python", "hosts")


@pytest.mark.usefixtures("drawn")
def test_what_was_measured_beside_goes_along(folder: Path, tmp_path: Path) -> None:
    row = Finding(topic="size", ddp="1", horovod="2", source=f"/home/{USER}/x")
    measured.write(folder, Beyond(measured_at="2026-01-01T00:00:00+00:00", machine="Test CPU", findings=(row,)))
    found = publish(folder, tmp_path / "published", None)
    copy = measured.read(found.path)
    assert copy is not None
    assert copy.findings[0].source.startswith("{path-")
    assert "| size | 1 | 2 |" in (found.path / "report" / "report.md").read_text()


def unfinished(folder: Path) -> str:
    next(folder.rglob(record.HEADER)).unlink()
    return "is not finished: 1 launches are missing"


def interrupted(folder: Path) -> str:
    path = next(folder.rglob(record.HEADER))
    path.write_text(path.read_text().replace('"status": "ok"', '"status": "interrupted"'))
    return "is not finished: a launch was interrupted"


def unreadable(folder: Path) -> str:
    next(folder.rglob(record.HEADER)).write_text("{")
    return "record.json cannot be read"


def cut_samples(folder: Path) -> str:
    path = next(folder.rglob(record.SAMPLES))
    path.write_bytes(path.read_bytes()[:100])
    return "samples.parquet cannot be read"


def link(folder: Path) -> str:
    path = next(folder.rglob(record.SAMPLES))
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    return "is a symbolic link; publish takes plain files and folders"


def thawed(folder: Path) -> str:
    path = folder / "study.yaml"
    path.write_text(path.read_text().replace("margin: 0.02", "margin: 0.5"))
    return "was changed since it was frozen"


def climbing(folder: Path) -> str:
    path = folder / "study.yaml"
    path.write_text(path.read_text().replace("name: planted", "name: ../planted"))
    return "study.yaml"


@pytest.mark.parametrize("spoil", [unfinished, interrupted, unreadable, cut_samples, link, thawed, climbing])
def test_what_cannot_be_published_is_said_in_one_line(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = spoil(folder)
    assert main(["publish", str(folder), "--published", str(tmp_path / "published")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "published").exists(), "nothing is left of the try"


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "/tmp/x", "", ".hidden", "a b", "x" * 101])
def test_a_name_is_that_of_one_folder(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", str(folder), "--name", name, "--published", str(tmp_path / "published")]) == 2
    assert "--name=" in capsys.readouterr().err


def test_an_unknown_study_names_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "nothing", "--results", str(folder.parent)]) == 2
    assert "studies there: planted" in capsys.readouterr().err


def test_failures_alone_are_not_published(tmp_path: Path) -> None:
    plant(tmp_path / "runs", [replace(one, parity=FAILED) for one in smoke()[4:6]])
    with pytest.raises(UserError, match="no launch ended well"):
        publish(tmp_path / "runs", tmp_path / "published", None)


def test_a_contestant_that_was_given_up_goes_along(tmp_path: Path) -> None:
    plants = [smoke()[4], replace(smoke()[5], launches=0)]
    plant(tmp_path / "runs", plants, launches=4)
    for launch in range(2):
        out = tmp_path / "runs" / "launches" / plants[1].case.id / str(launch)
        record.write(out, header(plants[1].case, launch, status="failed", reason="no port", parity=None), None)
    found = publish(tmp_path / "runs", tmp_path / "published", None)
    assert "of 6 launches 2 failed" in (found.path / "NOTES.md").read_text()


def test_a_link_on_the_way_to_the_set_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "here").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="here is a symbolic link"):
        publish(folder, tmp_path / "published", "here")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_two_machines_need_a_name(folder: Path, tmp_path: Path) -> None:
    for path in next(folder.glob("launches/*")).rglob(record.HEADER):
        path.write_text(path.read_text().replace("Test CPU", "Other CPU"))
    with pytest.raises(UserError, match="--name: the records name 2 machines"):
        publish(folder, tmp_path / "published", None)
    assert publish(folder, tmp_path / "published", "both").new


def test_a_folder_that_cannot_be_written_is_the_users_mistake(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "published").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        publish(folder, tmp_path / "published", None)


def test_parity_is_what_it_was(folder: Path, tmp_path: Path) -> None:
    found = publish(folder, tmp_path / "published", None)
    assert record.read(next(found.path.rglob(record.HEADER)).parent).parity == PASSED
