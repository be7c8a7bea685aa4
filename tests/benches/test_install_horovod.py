"""`install-horovod`: when it builds, when it keeps what is there, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benches.errors import UserError
from benches.install import BuildError, build, compiler, horovod, plan, proof, source
from benches.install.horovod import Found
from benches.install.mpi import MpiKit
from benches.install.plan import TorchKit
from benches.install.steps import Steps
from launchers.spec import Mpi

CPU = Found("0.28.1", {"gloo": True, "mpi": True, "nccl": False, "cuda": False, "rocm": False})
NCCL = Found("0.28.1", {**CPU.flags, "nccl": True, "cuda": True})
BROKEN = Found("", {}, "ImportError: libmpi.so.40: cannot open shared object file")


class World:
    """An environment in which nothing is really fetched, compiled or installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.present: Found | None = None
        self.installed: list[Path] = []
        self.commands: list[str] = []
        self.compiles = 0
        self.proof: Callable[..., None] = lambda *_: None

    @property
    def cache(self) -> Path:
        return self.root / "ringduel" / "horovod"

    def run(self, steps: Steps, name: str, argv: list[str], **_: Any) -> None:
        """In place of Steps.run."""
        self.commands.append(" ".join(argv))
        if argv[3:4] == ["wheel"]:
            self.compiles += 1
            folder = steps.work / "wheels"
            folder.mkdir()
            record = (Path(argv[-1]) / "horovod" / build.RECORD).read_text()
            (folder / "horovod-0.28.1-cp311.whl").write_text(record)
        if argv[3:4] == ["install"] and argv[-1].endswith(".whl"):
            self.present = CPU
            self.installed.append(Path(argv[-1]))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    kit = MpiKit(Mpi("/env/bin/mpirun", "openmpi5", "5.0.11"), Path(sys.prefix), True)
    tree = tmp_path / "tree"
    (tree / "horovod").mkdir(parents=True)
    monkeypatch.setenv("RINGDUEL_CACHE", str(tmp_path))
    monkeypatch.setattr(Steps, "run", lambda steps, *args, **kwargs: made.run(steps, *args, **kwargs))
    monkeypatch.setattr(horovod, "find", lambda: made.present)
    monkeypatch.setattr(horovod, "build_info", dict)
    monkeypatch.setattr(horovod.mpi, "ensure", lambda *_: kit)
    monkeypatch.setattr(plan, "torch_kit", lambda: TorchKit("2.14.1+cpu", None, Path(sys.prefix) / "torch"))
    monkeypatch.setattr(plan, "cxx_standard", lambda _: 20)
    monkeypatch.setattr(compiler, "check", lambda *_: "g++ 12.2.0")
    monkeypatch.setattr(source, "fetch", lambda *_: tmp_path)
    monkeypatch.setattr(source, "unpack", lambda *_: tree)
    monkeypatch.setattr(proof, "prove", lambda *args: made.proof(*args))
    return made


def test_what_it_says_is_found_among_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"version": CPU.version, **CPU.flags})
    monkeypatch.setattr(horovod, "find_spec", lambda _: True)
    monkeypatch.setattr(horovod, "output", lambda *_: (0, f"{said}\nWarning: leaked\n"))
    assert horovod.find() == CPU
    monkeypatch.setattr(horovod, "output", lambda *_: (0, "Warning: leaked\n"))
    assert horovod.find() == Found("", {}, "Warning: leaked")


def test_where_there_is_none_one_is_built_cached_and_installed(world: World) -> None:
    horovod.install()
    (wheel,) = world.installed
    record = json.loads(wheel.read_text())
    assert wheel.parent == world.cache / record["key"]
    assert (record["torch"], record["cxx_standard"], record["flavour"]) == ("2.14.1+cpu", 20, "cpu")
    assert record["patch_sha256"] == source.digest(source.PATCH)
    assert (wheel.parent / "build.log").exists()
    assert list((world.cache / "logs").iterdir()) == []


def test_the_second_time_the_wheel_comes_from_the_cache(world: World) -> None:
    horovod.install()
    world.present = None
    horovod.install()
    assert world.compiles == 1
    assert world.installed[0] == world.installed[1]


def test_another_patch_is_another_wheel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    horovod.install()
    world.present = None
    original = horovod.Plan
    monkeypatch.setattr(horovod, "Plan", lambda **fields: original(**fields, patch_sha256="other"))
    horovod.install()
    assert world.compiles == 2


@pytest.mark.parametrize(("present", "gpu"), [(CPU, False), (NCCL, False), (NCCL, True)])
def test_an_importable_one_is_kept(world: World, capsys: pytest.CaptureFixture[str], present: Found, gpu: bool) -> None:
    world.present = present
    horovod.install(gpu=gpu)
    assert world.commands == []
    built = "gloo, mpi, nccl, cuda" if present is NCCL else "gloo, mpi"
    said = f"Horovod 0.28.1 (built with: {built}; not built by Ringduel) is used as it is; --force replaces it\n"
    assert capsys.readouterr().out == said


def test_force_replaces_it(world: World) -> None:
    world.present = CPU
    horovod.install(force=True)
    assert len(world.installed) == 1


def test_one_without_nccl_is_not_replaced_unasked(world: World) -> None:
    world.present = CPU
    with pytest.raises(UserError, match=r"--gpu: Horovod 0\.28\.1 .* has no NCCL; --force replaces it"):
        horovod.install(gpu=True)
    assert world.commands == []


def test_somebody_elses_that_does_not_import_is_not_replaced_unasked(world: World) -> None:
    world.present = BROKEN
    with pytest.raises(UserError, match=r"not importable \(ImportError: libmpi\.so\.40: .*\); load what it needs"):
        horovod.install()
    assert world.commands == []


def test_our_own_that_does_not_import_is_built_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.present = BROKEN
    monkeypatch.setattr(horovod, "build_info", lambda: {"patch_sha256": "ab"})
    horovod.install()
    assert len(world.installed) == 1


def test_torch_is_never_named_to_pip(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_installed", lambda name: name != "cloudpickle")
    horovod.install()
    installs = [command for command in world.commands if " install " in command and "--target" not in command]
    assert installs[0].endswith("pip install cloudpickle")
    assert installs[1].endswith(f"pip install --no-deps --force-reinstall {world.installed[0]}")
    assert len(installs) == 2


@pytest.mark.parametrize("error", [BuildError("all-reduce over mpi: it hung"), KeyboardInterrupt()])
def test_what_is_not_proven_is_removed_again(world: World, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    world.proof = fail
    with pytest.raises(type(error)):
        horovod.install()
    assert world.commands[-1].endswith("pip uninstall -y horovod")
    (log,) = (world.cache / "logs").iterdir()
    assert "wheel" not in log.name


def test_a_failed_build_leaves_its_log_and_no_wheel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BuildError("patch: no")

    monkeypatch.setattr(source, "patch", fail)
    with pytest.raises(BuildError):
        horovod.install()
    assert list(world.cache.rglob("*.whl")) == []
    assert len(list((world.cache / "logs").iterdir())) == 1


def test_a_gpu_build_that_cannot_be_fetches_nothing(world: World) -> None:
    with pytest.raises(UserError, match=r"--gpu: torch 2\.14\.1\+cpu is a CPU build"):
        horovod.install(gpu=True)
    assert world.commands == []
    assert not world.cache.exists()


def test_build_info_needs_neither_torch_nor_horovod(tmp_path: Path) -> None:
    script = (
        "import sys; from benches.install.horovod import build_info; print(build_info());"
        "assert not {'torch', 'horovod'} & set(sys.modules)"
    )
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not to be imported')")
    for record, said in ((None, "{}"), ('{"key": "k"}', "{'key': 'k'}")):
        if record:
            (package / build.RECORD).write_text(record)
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


@pytest.mark.horovod
def test_the_installed_one_is_found() -> None:
    found = horovod.find()
    assert found is not None
    assert found.version
    assert found.flags["gloo"]


@pytest.mark.horovod
def test_two_ranks_add_up_over_each_transport(tmp_path: Path) -> None:
    steps = Steps(tmp_path, tmp_path / "build.log")
    proof.prove(["gloo", "mpi"], steps)
    assert steps.log.read_text().count("prove: all-reduce") == 2


@pytest.mark.horovod
def test_one_rank_alone_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = tmp_path / "mpirun"
    lonely.write_text('#!/bin/sh\nwhile [ "$1" != -m ]; do shift; done\nexec ' + sys.executable + ' "$@"\n')
    lonely.chmod(0o755)
    monkeypatch.setattr(proof.Tools, "mpi", lambda *_: Mpi(str(lonely), "openmpi5", "5.0.11"))
    steps = Steps(tmp_path, tmp_path / "build.log")
    with pytest.raises(BuildError, match="world size 1 where 2 was asked for"):
        proof.prove(["mpi"], steps)
