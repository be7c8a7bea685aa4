"""`ringduel doctor`: what can run here, what is missing and its remedy; with `model=…`, what one step of it costs."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benches import apart, preflight
from benches.config import compose
from benches.errors import UserError
from benches.host import cpu_name
from benches.install.horovod import Found, find
from benches.machine import visible_gpus
from benches.output import Terminal, print_json
from benches.spec import Case, dump
from launchers.supervise import json_line, last_line, output
from launchers.tools import Tools

EXTRAS = {"torchvision": "vision", "scikit-learn": "data", "transformers": "text"}
COST_LIMIT_S = 120.0
START_LIMIT_S = 180.0
INSTALL = "ringduel install-horovod"


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    what: str
    good: bool
    found: str
    remedy: str = ""

    def plain(self) -> dict[str, Any]:
        return {"what": self.what, "ok": self.good, "found": self.found, "remedy": self.remedy}


def doctor_command(words: list[str], config_dir: Path | None, as_json: bool) -> int:
    """Look at this machine, and at the model that `words` name. Status 1 when no comparison can run here."""
    findings = list(examine())
    cost = cost_of(first_case(words, config_dir)) if words else None
    if as_json:
        print_json({"findings": [finding.plain() for finding in findings], "cost": cost})
    else:
        show(findings, cost, Terminal())
    ready = {finding.what for finding in findings if finding.good}
    return 0 if "ddp/gloo" in ready and any(what.startswith("horovod/") for what in ready) else 1


def examine() -> Iterator[Finding]:
    """Everything that a study needs, the machine first."""
    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory()
    yield Finding("host", True, f"{cpu_name()}, {cores} cores, {memory.available / 2**30:.1f} GiB of memory free")
    spare = "" if cores >= 4 else "two ranks leave no spare core for communication; such results are marked"
    yield Finding("cores", cores >= 2, str(cores), spare if cores >= 2 else "one core runs one rank only")
    yield Finding("python", True, f"{platform.python_version()} at {sys.executable}")
    yield _package("torch", "pip install torch")
    gpus = visible_gpus(None)
    yield Finding("gpu", gpus > 0, f"{gpus} visible", "" if gpus else "CUDA cells need one; device=cpu works without")
    yield _mpi()
    horovod = find()
    yield _horovod(horovod)
    yield from cells(horovod, gpus)
    yield _ddp_mpi()
    for package, extra in EXTRAS.items():
        yield _package(package, f"pip install -e '.[{extra}]'")


def cells(horovod: Found | None, gpus: int) -> Iterator[Finding]:
    """Which engine runs over which transport here."""
    nccl = "" if gpus else "needs a GPU"
    yield Finding("ddp/gloo", True, "in torch")
    yield Finding("ddp/nccl", gpus > 0, "in torch" if gpus else "no GPU", nccl)
    flags = horovod.flags if horovod else {}
    for transport in ("gloo", "mpi", "nccl"):
        built = bool(flags.get(transport))
        usable = built and (transport != "nccl" or gpus > 0)
        gpu = " --gpu" if transport == "nccl" else ""
        remedy = nccl if built else f"{INSTALL}{' --force' if horovod else ''}{gpu}"
        yield Finding(f"horovod/{transport}", usable, "built" if built else "not built", "" if usable else remedy)


def _ddp_mpi() -> Finding:
    try:
        mpi = Tools().mpi(sys.executable)
        preflight.judge_mpi(preflight.ask(None, [], mpi), mpi, sys.executable)
    except UserError as error:
        return Finding("ddp/mpi", False, "not usable", str(error))
    return Finding("ddp/mpi", True, "mpi4py, by a Python hook of ours")


def _horovod(found: Found | None) -> Finding:
    if found is None:
        return Finding("horovod", False, "not installed", INSTALL)
    if found.error:
        return Finding("horovod", False, f"does not import: {found.error}", f"{INSTALL} --force")
    return Finding("horovod", True, found.text())


def _mpi() -> Finding:
    try:
        mpi = Tools().mpi(sys.executable)
    except UserError as error:
        return Finding("mpi", False, "none that can be used", str(error))
    return Finding("mpi", True, f"{mpi.flavour} {mpi.version} at {mpi.program}")


def _package(name: str, remedy: str) -> Finding:
    try:
        return Finding(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", remedy)


def first_case(words: list[str], config_dir: Path | None) -> Case:
    """The case whose model is tried: that of the first contestant."""
    return compose(words, config_dir).study.contestants[0].case


def cost_of(case: Case) -> dict[str, Any]:
    """What `benches.cost` says of this case, run in a process of its own. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="ringduel-") as folder:
        path = Path(folder) / "case.yaml"
        path.write_text(dump(case))
        given = (str(path), "--limit", str(COST_LIMIT_S))
        argv = apart.words(case.python, "import benches.cost as c; sys.exit(c.main())", *given)
        code, text = output(argv, limit_s=START_LIMIT_S + COST_LIMIT_S)
    found = json_line(text)
    if code != 0 or found is None:
        raise UserError(last_line(text, "no answer in time"))
    return found


def show(findings: list[Finding], cost: dict[str, Any] | None, console: Console) -> None:
    """Print the findings, then the cost."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for finding in findings:
        mark = Text("ok", "green") if finding.good else Text("--", "yellow")
        table.add_row(mark, Text(finding.what), Text(finding.found), Text(finding.remedy, "dim"))
    console.print(table)
    if cost is not None:
        console.print(f"\nOne step of {cost['model']} in one process, no engine:", highlight=False)
        for line in cost_lines(cost):
            console.print(f"  {line}", markup=False, highlight=False)


def cost_lines(cost: dict[str, Any]) -> Iterator[str]:
    """The cost in words."""
    threads = f"{cost['threads']} thread{'s' if cost['threads'] > 1 else ''}"
    yield (
        f"{cost['step_time_s'] * 1e3:.1f} ms (median of {cost['steps']} steps) on {cost['device']}, {threads}, "
        f"{cost['precision']}, batch {cost['per_rank_batch']}: {cost['samples_per_s']:.4g} {cost['sample']}/s"
    )
    yield (
        f"{cost['parameters']:,} parameters in {cost['tensors']} tensors, {cost['gradient_mb']:.1f} MiB of gradients, "
        f"the largest {cost['largest_parameter']} with {cost['largest_parameter_mb']:.2f} MiB"
    )
    yield f"peak memory {cost['peak_memory_mb']:.0f} MiB"
    if cost["without_gradient"]:
        yield f"no gradient reaches {', '.join(cost['without_gradient'][:3])}: set ddp.find_unused_parameters=true"
