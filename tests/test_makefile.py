"""The two commands, as make would run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout without an environment, as far as make looks at it."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def dry(clone: Path, *words: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "TORCH", "MAKEFLAGS")}
    command = ["make", "-C", str(clone), "-n", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def place(text: str, *parts: str) -> list[int]:
    positions = [text.find(part) for part in parts]
    assert -1 not in positions, text
    return positions


def test_compare_makes_all_it_needs_in_order(clone: Path) -> None:
    said = dry(clone, "compare")
    steps = place(
        said,
        "python3 -m venv .venv",
        "pip install --no-compile torch torchvision",
        "pip install --no-compile -e '.[data,mpi,vision]'",
        "ringduel install-horovod",
        "ringduel run experiment=smoke",
    )
    assert steps == sorted(steps)


def test_a_second_time_it_only_runs(clone: Path) -> None:
    (clone / ".venv").mkdir()
    for stamp in (".torch", ".installed", ".horovod"):
        (clone / ".venv" / stamp).touch()
    said = [line for line in dry(clone, "compare").splitlines() if not line.startswith("make")]
    assert said == [".venv/bin/ringduel run experiment=smoke"]


def test_a_changed_project_is_installed_again_and_torch_is_not(clone: Path) -> None:
    (clone / ".venv").mkdir()
    for stamp in (".torch", ".installed", ".horovod"):
        (clone / ".venv" / stamp).touch()
        os.utime(clone / ".venv" / stamp, (1, 1))
    said = dry(clone, "compare")
    assert "--no-compile -e" in said
    assert "install --no-compile torch" not in said
    assert "install-horovod" not in said


def test_test_lints_first(clone: Path) -> None:
    steps = place(
        dry(clone, "test"), "ruff check", "ruff format --check", "mypy", "install-horovod", "python -m pytest"
    )
    assert steps == sorted(steps)


def test_compare_gpu_builds_with_nccl(clone: Path) -> None:
    steps = place(dry(clone, "compare-gpu"), "install-horovod --gpu --force", "ringduel run experiment=gpu")
    assert steps == sorted(steps)
    assert "install-horovod\n" not in dry(clone, "compare-gpu")


def test_torch_can_be_chosen_and_is_then_not_replaced(clone: Path) -> None:
    said = dry(clone, "test", "TORCH=torch==2.13.0", "PYTHON=python3.12")
    place(said, "python3.12 -m venv", " torch==2.13.0\n", "'.[data,mpi]'", "'.[dev,text]'")
    assert "vision" not in said


def test_an_old_python_is_refused_in_one_line(clone: Path) -> None:
    old = clone / "old"
    # make calls it as PYTHON -c CODE.
    pretend = "import sys; sys.version_info = (3, 9); exec(sys.argv[1])"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{pretend}' \"$2\"\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "-C", str(clone), "compare", f"PYTHON={old}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == f"PYTHON={old}: Python 3.10 or later is needed"
    assert not (clone / ".venv").exists()


def test_no_file_names_an_index_host() -> None:
    """pip's own variables choose the index."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, timeout=60)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    build = ("Makefile", ".ci/run", ".github/", "pyproject.toml", "benches/install/")
    for name in listed.stdout.splitlines():
        if name.startswith(build):
            text = (ROOT / name).read_text()
            assert "index-url" not in text, name
            assert "pypi.org" not in text, name


def test_the_workflow_runs_an_experiment_that_exists() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert "ringduel run experiment=ci\n" in text
    assert (ROOT / "conf/experiment/ci.yaml").exists()
    assert 'report.md >> "$GITHUB_STEP_SUMMARY"' in text
