"""Which MPI Horovod is built with."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from benches.errors import UserError
from benches.install import BuildError, mpi
from benches.install.steps import Steps

OPEN_MPI = "mpirun (Open MPI) {}\n\nReport bugs"
MPICH = "HYDRA build details:\n    Version:                                 {}\n"


def plant(prefix: Path, says: str, *programs: str) -> Path:
    """Programs that say this; returns their folder."""
    folder = prefix / "bin"
    folder.mkdir(parents=True)
    for program in programs:
        (folder / program).write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        (folder / program).chmod(0o755)
    return folder


def test_one_on_the_path_comes_before_the_environments_own(tmp_path: Path) -> None:
    system = plant(tmp_path / "system", OPEN_MPI.format("4.1.4"), "mpirun", "mpicxx")
    own = plant(tmp_path / "env", OPEN_MPI.format("5.0.11"), "mpirun", "mpicxx")
    found = mpi.find(f"/nowhere:{system}", own)
    assert found is not None
    assert (found.mpi.program, found.mpi.flavour, found.inside) == (str(system / "mpirun"), "openmpi4", False)
    assert found.label() == f"openmpi 4.1.4 in {tmp_path / 'system'}"


def test_the_environments_own_moves_with_it(tmp_path: Path) -> None:
    own = plant(tmp_path / "env", OPEN_MPI.format("5.0.11"), "mpirun", "mpicxx")
    for path in ("/nowhere", f"{own}:/nowhere"):
        found = mpi.find(path, own)
        assert found is not None
        assert found.inside
        assert found.label() == "openmpi 5.0.11"
        assert found.libraries() == [tmp_path / "env" / "lib"]


def test_one_that_cannot_compile_is_passed_over(tmp_path: Path) -> None:
    runtime = plant(tmp_path / "runtime", OPEN_MPI.format("4.1.4"), "mpirun")
    whole = plant(tmp_path / "whole", MPICH.format("4.3.0"), "mpiexec", "mpicxx")
    found = mpi.find(f"{runtime}:{whole}", tmp_path / "env" / "bin")
    assert found is not None
    assert found.label() == f"mpich 4.3.0 in {tmp_path / 'whole'}"
    assert mpi.find(str(runtime), tmp_path / "env" / "bin") is None


def test_an_mpi_that_no_launcher_serves_is_refused(tmp_path: Path) -> None:
    folder = plant(tmp_path, OPEN_MPI.format("3.1.0"), "mpirun", "mpicxx")
    with pytest.raises(UserError, match=r"3\.1\.0"):
        mpi.find(str(folder), tmp_path / "env" / "bin")


def test_its_compiler_says_where_its_libraries_are(tmp_path: Path) -> None:
    folder = plant(tmp_path, MPICH.format("4.3.0"), "mpirun")
    plant_compiler = folder / "mpicxx"
    plant_compiler.write_text(
        "#!/bin/sh\necho 'g++ -I/opt/mpi/include -L/opt/mpi/lib -L/opt/ucx -lmpicxx -L/opt/mpi/lib'\n"
    )
    plant_compiler.chmod(0o755)
    found = mpi.find(str(folder), tmp_path / "env" / "bin")
    assert found is not None
    assert found.libraries() == [Path("/opt/mpi/lib"), Path("/opt/ucx")]


def test_without_any_pip_installs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(tmp_path, tmp_path / "build.log", io.StringIO())
    monkeypatch.setattr("sys.prefix", str(tmp_path / "env"))
    commands: list[list[str]] = []

    def install(name: str, argv: list[str], **_: object) -> None:
        commands.append(argv)
        plant(tmp_path / "env", OPEN_MPI.format("5.0.11"), "mpirun", "mpicxx")

    monkeypatch.setattr(steps, "run", install)
    assert mpi.ensure({"PATH": "/nowhere"}, steps).label() == "openmpi 5.0.11"
    assert mpi.ensure({"PATH": "/nowhere"}, steps).label() == "openmpi 5.0.11"
    assert [argv[-2:] for argv in commands] == [["install", "openmpi>=5,<6"]]


def test_an_install_that_brings_no_mpi_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(tmp_path, tmp_path / "build.log", io.StringIO())
    monkeypatch.setattr("sys.prefix", str(tmp_path / "env"))
    monkeypatch.setattr(steps, "run", lambda *_, **__: None)
    with pytest.raises(BuildError, match="holds no mpirun with mpicxx"):
        mpi.ensure({"PATH": os.devnull}, steps)
