"""`ringduel install-horovod`: an importable Horovod is used as it is; else one is built, installed and proven."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benches.errors import UserError
from benches.install import BuildError, mpi, plan, proof, toolkit
from benches.install.build import RECORD, build, cached, install_wheel, uninstall
from benches.install.plan import Plan
from benches.install.steps import Steps, first_error
from benches.install.toolkit import CudaPlan
from launchers.supervise import interrupts, json_line, output

SITE = Path(sysconfig.get_path("platlib"))
"""Where pip puts the wheel."""

PROBE_LIMIT_S = 180.0

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
    Ctrl-C or SIGTERM: KeyboardInterrupt, once the build has ended.
    """
    present = find()
    if present is not None and not force and keep(present, gpu):
        print(f"{present.text()} is used as it is; --force replaces it")
        return
    # What cannot work is found before anything is fetched.
    torch = plan.torch_kit()
    standard = plan.cxx_standard(torch)
    cuda = toolkit.plan_gpu(torch, SITE, os.environ) if gpu else None
    cache = plan.cache(os.environ)
    with interrupts() as stop, tempfile.TemporaryDirectory(prefix="ringduel-horovod-") as work:
        steps = Steps(Path(work), cache / "logs" / f"{Path(work).name}.log", stop=stop)
        kit = mpi.ensure(os.environ, steps)
        libraries = [*kit.libraries(), torch.folder / "lib", *([cuda.nccl / "lib"] if cuda else [])]
        wanted = Plan(
            torch=torch.version,
            cxx_standard=standard,
            mpi=kit.label(),
            flavour=cuda.flavour if cuda else "cpu",
            rpath=plan.run_path(libraries, SITE, Path(sys.prefix)),
        )
        install_wheel(cached(wanted, cache, steps) or build(wanted, kit.prefix, cuda, cache, steps), steps)
        _prove(cuda, torch.gpus, steps)
        # The log of a build lies beside its wheel; this one is for failures.
        steps.log.unlink()
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
    answer = json_line(said)
    if code != 0 or answer is None:
        return Found("", {}, first_error(said))
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


def _prove(cuda: CudaPlan | None, gpus: int, steps: Steps) -> None:
    transports = ["gloo", "mpi"]
    if cuda and gpus >= proof.RANKS:
        transports.append("nccl")
    elif cuda:
        steps.say(f"NCCL is built but not proven: that takes {proof.RANKS} GPUs, and {gpus} are visible")
    try:
        proof.prove(transports, steps)
    except (BuildError, KeyboardInterrupt):
        # What is not proven must not pass for an importable Horovod in the next run.
        steps.stop = None
        uninstall(steps)
        raise
