"""One wheel of Horovod: built in a folder of its own, kept in the cache, installed without its dependencies."""

from __future__ import annotations

import json
import os
import shutil
import time
from importlib import metadata
from pathlib import Path

import psutil

from benches.install import compiler, plan, source, toolkit
from benches.install.plan import Plan
from benches.install.steps import Steps, pip
from benches.install.toolkit import CudaPlan

RECORD = "ringduel.json"
"""In the installed package: how the wheel was built. It comes and goes with the wheel."""

SECONDS = "build_s.json"
"""Beside the wheel: how long it took to compile, for it cannot be told inside."""

NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging")
"""What Horovod imports besides torch, which it must never pull in."""

TOOLS = ("cmake>=3.31,<4", "setuptools>=77,<85", "wheel", "packaging", "patch-ng>=1.18,<2")
"""What the build runs; kept out of the environment. CMake 4 refuses the gloo that Horovod carries."""

PIP_LIMIT_S = 1800.0
BUILD_LIMIT_S = 7200.0


def cached(wanted: Plan, cache: Path, steps: Steps) -> Path | None:
    """The wheel of an earlier build, if there is one."""
    wheel = next((cache / wanted.key()).glob("*.whl"), None)
    if wheel:
        steps.say(f"wheel from the cache: {wheel.parent}")
    return wheel


def build(wanted: Plan, mpi_prefix: Path, cuda: CudaPlan | None, cache: Path, steps: Steps) -> Path:
    """Build the wheel and put it, with its log, into the cache. Raises UserError or BuildError."""
    record = wanted.record(compiler.check(os.environ, wanted.cxx_standard))
    tools = steps.work / "tools"
    fetch = [*pip(), "install", "--target", str(tools), *TOOLS, *(cuda.packages if cuda else [])]
    steps.run("fetch CMake and the other tools of the build", fetch, env=os.environ, limit_s=PIP_LIMIT_S)
    gpu = toolkit.assemble(steps.work, tools, cuda) if cuda else {}
    count = plan.jobs(len(os.sched_getaffinity(0)), psutil.virtual_memory().available // 2**20)
    env = plan.environment(os.environ, wanted, mpi_prefix, tools, count, gpu)
    tree = source.unpack(source.fetch(cache, env, steps), steps.work)
    source.patch(tree, env, steps)
    (tree / "horovod" / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    wheels = steps.work / "wheels"
    command = [*pip(), "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(tree)]
    name = f"build Horovod {wanted.horovod} for torch {wanted.torch} ({wanted.flavour}; C++{wanted.cxx_standard})"
    steps.say(f"the next step takes minutes; compilers at once: {count}")
    started = time.monotonic()
    steps.run(name, command, env=env, limit_s=BUILD_LIMIT_S)
    return _store(next(wheels.glob("*.whl")), cache / wanted.key(), time.monotonic() - started, steps)


def _store(wheel: Path, place: Path, seconds: float, steps: Steps) -> Path:
    """Whole or not at all: others may be looking for the same wheel."""
    partial = place.with_name(f".{place.name}.{steps.work.name}")
    partial.mkdir(parents=True)
    shutil.copy(wheel, partial)
    shutil.copy(steps.log, partial / "build.log")
    (partial / SECONDS).write_text(f"{seconds:.1f}\n")
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
    return place / wheel.name


def install_wheel(wheel: Path, steps: Steps) -> None:
    """The wheel, without its dependencies, and of these only what is missing: torch is never touched."""
    missing = [name for name in NEEDS if not _installed(name)]
    if missing:
        steps.run(f"install {', '.join(missing)}", [*pip(), "install", *missing], env=os.environ, limit_s=PIP_LIMIT_S)
    command = [*pip(), "install", "--no-deps", "--force-reinstall", str(wheel)]
    steps.run("install the wheel", command, env=os.environ, limit_s=PIP_LIMIT_S)


def uninstall(steps: Steps) -> None:
    """Remove Horovod from this environment."""
    steps.run("remove it again", [*pip(), "uninstall", "-y", "horovod"], env=os.environ, limit_s=PIP_LIMIT_S)


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
