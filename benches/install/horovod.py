"""`ringduel install-horovod`: an importable Horovod is used as it is; else one is built, installed and proven."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from benches.errors import UserError
from benches.install import BuildError, compiler, mpi, plan, proof, source, toolkit
from benches.install.mpi import MpiKit
from benches.install.plan import Plan, TorchKit
from benches.install.steps import Steps, first_error, pip
from benches.install.toolkit import Nccl
from launchers.supervise import output

RECORD = "ringduel.json"
"""In the installed package: how the wheel was built. It comes and goes with the wheel."""

NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging")
"""What Horovod imports besides torch, which it must never pull in."""

TOOLS = ("cmake>=3.31,<4", "setuptools>=77,<85", "wheel", "packaging", "patch-ng>=1.18,<2")
"""What the build runs; kept out of the environment. CMake 4 refuses the gloo that Horovod carries."""

PROBE_LIMIT_S = 180.0
TOOLS_LIMIT_S = 1800.0
BUILD_LIMIT_S = 7200.0

PROBE = """
import json, horovod, horovod.torch as hvd
print(json.dumps({"version": horovod.__version__, "gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()),
                  "nccl": bool(hvd.nccl_built()), "cuda": bool(hvd.cuda_built()), "rocm": bool(hvd.rocm_built())}))
"""


@dataclass(frozen=True)
class Found:
    """The Horovod of this environment, as a process that imports it sees it."""

    version: str
    """Empty where it does not import."""
    flags: Mapping[str, bool]
    """What it was built with: gloo, mpi, nccl, cuda, rocm."""
    error: str = ""
    """Why it does not import."""

    def text(self) -> str:
        """One line for people: version, transports, who built it."""
        built = ", ".join(name for name, has in self.flags.items() if has)
        patch = build_info().get("patch_sha256")
        origin = f"built by Ringduel with patch {patch[:12]}" if patch else "not built by Ringduel"
        return f"Horovod {self.version} (built with: {built or 'nothing'}; {origin})"


def install(gpu: bool = False, force: bool = False) -> None:
    """Leave a working Horovod in this environment. Raises UserError or BuildError, each of one line.

    Progress goes to stderr, the outcome to stdout. `gpu`: with NCCL. `force`: replace an importable one.
    """
    present = find()
    if present is not None and not force and keep(present, gpu):
        print(f"{present.text()} is used as it is; --force replaces it")
        return
    folder = plan.cache(os.environ)
    with tempfile.TemporaryDirectory(prefix="ringduel-horovod-") as work:
        log = folder / "logs" / f"{Path(work).name}.log"
        steps = Steps(Path(work), log)
        _install(mpi.ensure(os.environ, steps), folder, gpu, steps)
        # The log of a build lies beside its wheel; this one is for failures.
        log.unlink()
    done = find()
    print(f"{done.text() if done else 'Horovod'} is installed")


def keep(present: Found, gpu: bool) -> bool:
    """Whether to leave this Horovod alone. Raises UserError where only --force may decide."""
    if present.error:
        if build_info():
            return False
        raise UserError(
            f"horovod: installed by others but not importable ({present.error}); load what it needs, or --force"
        )
    if gpu and not present.flags["nccl"]:
        raise UserError(f"--gpu: {present.text()} has no NCCL; --force replaces it")
    return True


def find() -> Found | None:
    """The Horovod of this environment; None where there is none. A process of its own imports it."""
    invalidate_caches()
    if find_spec("horovod") is None:
        return None
    code, said = output([sys.executable, "-c", PROBE], PROBE_LIMIT_S)
    lines = said.strip().splitlines() or ["it said nothing"]
    if code != 0:
        return Found("", {}, first_error(said))
    answer = json.loads(lines[-1])
    return Found(answer.pop("version"), answer)


def build_info() -> dict[str, Any]:
    """How the installed Horovod was built by Ringduel; empty where there is none, or others built it.

    Keys: those of `Plan`, with key, compiler, transports. Imports neither torch nor Horovod.
    """
    found = find_spec("horovod")
    for folder in (found and found.submodule_search_locations) or []:
        record = Path(folder) / RECORD
        if record.exists():
            return dict(json.loads(record.read_text()))
    return {}


def _install(kit: MpiKit, folder: Path, gpu: bool, steps: Steps) -> None:
    torch = plan.torch_kit()
    site = Path(sysconfig.get_path("platlib"))
    nccl = toolkit.find_nccl(site, os.environ) if gpu else None
    libraries = [*kit.libraries(), torch.folder / "lib", *([nccl.folder / "lib"] if nccl else [])]
    wanted = Plan(
        torch=torch.version,
        cxx_standard=plan.cxx_standard(torch),
        mpi=kit.label(),
        flavour=toolkit.flavour(torch, nccl) if nccl else "cpu",
        rpath=plan.run_path(libraries, site, Path(sys.prefix)),
    )
    wheel = next((folder / wanted.key()).glob("*.whl"), None)
    if wheel:
        steps.say(f"wheel from the cache: {wheel.parent.name}")
    install_wheel(wheel or build(wanted, kit, torch, nccl, folder, steps), steps)
    proven = ["gloo", "mpi", *(["nccl"] if nccl and torch.gpus >= proof.RANKS else [])]
    if nccl and torch.gpus < proof.RANKS:
        steps.say(f"NCCL is built but not proven: that takes {proof.RANKS} GPUs, and {torch.gpus} are visible")
    try:
        proof.prove(kit.mpi, proven, steps)
    except BuildError:
        # What does not work must not pass for an importable Horovod in the next run.
        steps.run("remove it again", [*pip(), "uninstall", "-y", "horovod"], env=os.environ, limit_s=PROBE_LIMIT_S)
        raise


def build(wanted: Plan, kit: MpiKit, torch: TorchKit, nccl: Nccl | None, folder: Path, steps: Steps) -> Path:
    """Build the wheel and put it, with its log, into the cache."""
    record = wanted.record(compiler.check(os.environ, wanted.cxx_standard))
    packages = [*TOOLS, *(toolkit.requirements(torch, os.environ) if nccl else [])]
    tools = steps.work / "tools"
    fetch = [*pip(), "install", "--target", str(tools), *packages]
    steps.run("fetch CMake and the other tools of the build", fetch, env=os.environ, limit_s=TOOLS_LIMIT_S)
    gpu = toolkit.assemble(steps.work, tools, nccl, torch, os.environ) if nccl else {}
    count = plan.jobs(len(os.sched_getaffinity(0)), psutil.virtual_memory().available // 2**20)
    env = plan.environment(os.environ, wanted, kit.prefix, tools, count, gpu)
    tree = source.unpack(source.fetch(folder, env, steps), steps.work)
    source.patch(tree, env, steps)
    (tree / "horovod" / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    wheels = steps.work / "wheels"
    command = [*pip(), "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(tree)]
    name = f"build Horovod {wanted.horovod} for torch {wanted.torch} ({wanted.flavour}; C++{wanted.cxx_standard})"
    steps.say("the next step takes minutes: 2 on two idle cores")
    steps.run(name, command, env=env, limit_s=BUILD_LIMIT_S)
    return _store(next(wheels.glob("*.whl")), folder / wanted.key(), steps)


def _store(wheel: Path, place: Path, steps: Steps) -> Path:
    """Whole or not at all: others may be looking for the same wheel."""
    partial = place.with_name(f".{place.name}.{steps.work.name}")
    partial.mkdir(parents=True)
    shutil.copy(wheel, partial)
    shutil.copy(steps.log, partial / "build.log")
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
    return place / wheel.name


def install_wheel(wheel: Path, steps: Steps) -> None:
    """The wheel, without its dependencies, and of these only what is missing: torch is never touched."""
    missing = [name for name in NEEDS if not _installed(name)]
    if missing:
        steps.run(f"install {', '.join(missing)}", [*pip(), "install", *missing], env=os.environ, limit_s=TOOLS_LIMIT_S)
    command = [*pip(), "install", "--no-deps", "--force-reinstall", str(wheel)]
    steps.run("install the wheel", command, env=os.environ, limit_s=PROBE_LIMIT_S)


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
