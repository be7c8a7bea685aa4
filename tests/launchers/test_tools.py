"""Which MPI, torchrun and horovodrun are found. The version texts are what those programs print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benches.errors import UserError
from launchers.spec import Mpi
from launchers.tools import Tools, linked_mpirun, parse_mpi

OPEN_MPI_4 = "mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
DEBIAN = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n\n"
CANDIDATE = "mpirun (Open MPI) 5.0.0rc12\n"
OPEN_MPI_3 = "mpirun (Open MPI) 3.1.6\n"
MPICH = """HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    CC:                              cc
    Configure options:                       --with-device=ch4:ucx,ofi --with-pm=hydra:gforker
    Process Manager:                         pmi
    Launchers available:                     ssh rsh fork slurm ll lsf sge manual persist
"""
INTEL = """Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)
Copyright 2003-2026, Intel Corporation.
"""


@pytest.mark.parametrize(
    ("text", "flavour", "version"),
    [
        (OPEN_MPI_4, "openmpi4", "4.1.8"),
        (DEBIAN, "openmpi4", "4.1.4"),
        (OPEN_MPI_5, "openmpi5", "5.0.11"),
        (CANDIDATE, "openmpi5", "5.0.0rc12"),
        (MPICH, "mpich", "5.0.2"),
    ],
)
def test_version_is_read(text: str, flavour: str, version: str) -> None:
    assert parse_mpi("/usr/bin/mpirun", text) == Mpi("/usr/bin/mpirun", flavour, version)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (INTEL, "Intel MPI 2021.18.1 is not among the choices"),
        (OPEN_MPI_3, "Open MPI 3.1.6 is too old"),
        ("\nsh: 1: exec: not found\n", "'sh: 1: exec: not found'"),
        ("", "''"),
    ],
)
def test_other_mpis_are_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_mpi("/usr/bin/mpirun", text)
    line = str(error.value)
    assert line.startswith("mpirun=/usr/bin/mpirun: ")
    assert said in line
    assert line.endswith("Open MPI 4 or later, MPICH")
    assert "\n" not in line


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_mpirun(path: Path, version: str) -> Path:
    # Words of the shell alone: these tests leave nothing else on the PATH.
    return script(path, f"while IFS= read -r line; do echo \"$line\"; done <<'END'\n{version}END")


def fake_python(path: Path) -> str:
    """An interpreter without site-packages: no torch, no Horovod."""
    return str(script(path, f'exec "{sys.executable}" -S -E "$@"'))


def test_mpirun_of_the_library_that_horovod_is_linked_to(tmp_path: Path) -> None:
    program = fake_mpirun(tmp_path / "openmpi/bin/mpirun", OPEN_MPI_4)
    through = f"{tmp_path}/venv/horovod/../../openmpi/lib/libmpi.so.40"
    ldd = f"\tlinux-vdso.so.1 (0x00007ffe)\n\tlibmpi.so.40 => {through} (0x00007f7e0b600000)\n"
    assert linked_mpirun(ldd) == str(program)
    assert linked_mpirun("\tlibmpi.so.40 => not found\n") is None
    assert linked_mpirun("\tlibmpi.so.40 => /nowhere/lib/libmpi.so.40 (0x00007f7e0b600000)\n") is None


def test_mpirun_on_the_path_else_beside_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_mpirun(tmp_path / "path/mpirun", OPEN_MPI_4)
    beside = fake_mpirun(tmp_path / "env/bin/mpirun", OPEN_MPI_5)
    python = fake_python(tmp_path / "env/bin/python")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert Tools().mpi(python) == Mpi(str(on_path), "openmpi4", "4.1.8")
    on_path.unlink()
    assert Tools().mpi(python) == Mpi(str(beside), "openmpi5", "5.0.11")
    beside.unlink()
    with pytest.raises(UserError, match="transport=mpi: no mpirun on the PATH or beside"):
        Tools().mpi(python)


def test_each_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_mpirun(tmp_path / "bin/mpirun", OPEN_MPI_5)
    python = fake_python(tmp_path / "bin/python")
    monkeypatch.setenv("PATH", str(program.parent))
    found = Tools()
    first = found.mpi(python)
    program.unlink()
    Path(python).unlink()
    assert found.mpi(python) == first


def test_what_an_environment_holds(tmp_path: Path) -> None:
    assert Tools().packages(sys.executable).torch
    bare = Tools().packages(fake_python(tmp_path / "python"))
    assert (bare.torch, bare.horovod, bare.libraries) == (False, False, ())
    warns = script(tmp_path / "warns", f'"{sys.executable}" "$@" && echo "Warning: an old kernel" >&2')
    assert Tools().packages(str(warns)) == Tools().packages(sys.executable)


def test_a_file_in_the_folder_one_calls_from_does_not_mislead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "torch", "horovod"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    expected = Tools().packages(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert Tools().packages(sys.executable) == expected


def test_horovodrun_beside_the_interpreter_or_as_a_module(tmp_path: Path) -> None:
    python = fake_python(tmp_path / "bin/python")
    assert Tools().horovodrun(python) == (python, "-m", "horovod.runner.launch")
    program = script(tmp_path / "bin/horovodrun", "")
    assert Tools().horovodrun(python) == (str(program),)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "No such file or directory"),
        ("echo no license >&2; exit 3", "no license"),
        ("echo no Python", "no Python"),
    ],
)
def test_an_interpreter_that_does_not_run_is_refused(tmp_path: Path, body: str | None, said: str) -> None:
    python = tmp_path / "python"
    if body:
        script(python, body)
    with pytest.raises(UserError, match=rf"^python={python}: does not run here \(.*{said}\)"):
        Tools().packages(str(python))
