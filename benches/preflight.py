"""What can be known to fail before any rank starts. `check` raises UserError; it starts one short process for each
interpreter of the study, since only that can say what it imports."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from benches import allocation, apart, clusters, probe
from benches.errors import UserError
from benches.spec import Case, Study, plain
from benches.workloads import datasets
from launchers.choose import launcher
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.spec import Mpi
from launchers.supervise import last_line, output
from launchers.tools import LIBMPI, Tools, libmpi

LIMIT_S = 180.0
"""A cold import of torch from a network disk takes a minute; more is a hang."""
INSTALL = "run: ringduel install-horovod"


def check(study: Study, results: Path, slurm: SlurmSpec | None = None) -> None:
    """Raise UserError where an interpreter, folder, data set, model, transport or cluster of the study is not there.

    slurm: what was asked of it; then the nodes of the allocation are asked, of which this machine need be none.
    """
    cases = list({contestant.case.id: contestant.case for contestant in study.contestants}.values())
    tools = Tools()
    check_results(results)
    for case in cases:
        datasets.check(case)
    if slurm is not None:
        nodes = clusters.check_nodes(study, slurm)
        check_pmix(cases, tools, nodes)
        check_interpreters(cases, tools, lambda *asked: ask_nodes(nodes, *asked))
        return
    for case in cases:
        check_interpreter(case.python)
    check_interpreters(cases, tools, lambda *asked: {"": ask(*asked)})
    clusters.check(study, results)


def check_interpreters(
    cases: list[Case], tools: Tools, asking: Callable[[str | None, list[Case], Mpi | None], dict[str, probe.Answer]]
) -> None:
    """Raise UserError where an interpreter cannot run its cases. asking: gives answers by machine, "" is this one."""
    for python in {case.python for case in cases}:
        own = [case for case in cases if case.python == python]
        mpi = tools.mpi(python or sys.executable) if any(case.cell == "ddp/mpi" for case in own) else None
        for machine, answer in asking(python, own, mpi).items():
            try:
                judge(answer, own)
                if mpi is not None:
                    judge_mpi(answer, mpi, python or sys.executable)
            except UserError as error:
                raise UserError(f"{error} (on {machine})" if machine else str(error)) from None


def check_pmix(cases: list[Case], tools: Tools, nodes: SlurmNodes) -> None:
    """Raise UserError where srun is to start ranks over an MPI that needs PMIx, and Slurm has none."""
    started = [case.python or sys.executable for case in cases if case.uses_mpi and launcher(case) == "srun"]
    if any(tools.mpi(python).flavour != "mpich" for python in started):
        allocation.check_mpi(nodes)


def check_results(results: Path) -> None:
    """Raise UserError unless folders can be made in `results`, which need not exist yet."""
    there = next(path for path in (results, *results.parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"results={results}: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"results={results}: {there} cannot be written")


def check_interpreter(python: str | None) -> None:
    """Raise UserError unless `python` can be started; null is our own."""
    if python is not None and shutil.which(python) is None:
        raise UserError(f"python={python}: no such interpreter; null takes the one that runs ringduel")


def ask(python: str | None, cases: list[Case], mpi: Mpi | None = None) -> probe.Answer:
    """What the interpreter says of these cases' models, of Horovod, and of mpi4py where it is to use `mpi`."""
    return _answer(python, *output(_question(python, cases, mpi), limit_s=LIMIT_S))


def ask_nodes(
    nodes: SlurmNodes, python: str | None, cases: list[Case], mpi: Mpi | None = None
) -> dict[str, probe.Answer]:
    """What it says on each node."""
    said = allocation.ask_nodes(_question(python, cases, mpi), nodes, LIMIT_S)
    return {host: _answer(python, 0, "\n".join(lines)) for host, lines in zip(nodes.hosts, said, strict=True)}


def _question(python: str | None, cases: list[Case], mpi: Mpi | None) -> list[str]:
    models = {json.dumps(plain(case.model), sort_keys=True): plain(case.model) for case in cases}
    named = [case.cluster.env[LIBMPI] for case in cases if LIBMPI in case.cluster.env]
    request = {
        "models": list(models.values()),
        "horovod": any(case.engine == "horovod" for case in cases),
        # Of pods the launcher asks, which has none.
        "gpus": any(case.device == "cuda" and case.cluster.name != "kubernetes" for case in cases),
        "ddp": sorted({name for case in cases for name in may_lack(case)}),
        "mpi": mpi is not None,
        "libmpi": next(iter(named), libmpi(mpi) if mpi is not None else None),
    }
    return apart.words(python, "import benches.probe as p; p.main(sys.argv[1])", json.dumps(request))


def may_lack(case: Case) -> list[str]:
    """Settings of a case that not every torch has, as `probe.LACKING` names them."""
    if case.ddp is None:
        return []
    asked = {"ddp.comm_hook=bf16": case.ddp.comm_hook == "bf16", "ddp.first_bucket_mb": bool(case.ddp.first_bucket_mb)}
    return [name for name, there in asked.items() if there]


def _answer(python: str | None, code: int | None, text: str) -> probe.Answer:
    answers = [line for line in text.splitlines() if line.startswith(probe.MARK)]
    if code != 0 or not answers:
        silent = f"no answer within {LIMIT_S:g} s" if code is None else f"exit status {code}"
        raise UserError(f"python={python or sys.executable}: cannot run ranks: {last_line(text, silent)}")
    return msgspec.json.decode(answers[-1].removeprefix(probe.MARK), type=probe.Answer)


def judge(answer: probe.Answer, cases: list[Case]) -> None:
    """Raise UserError where the answer says that one of the cases cannot run."""
    if answer.fault is not None:
        raise UserError(answer.fault)
    for name, takes in answer.lacks.items():
        raise UserError(f"{name}: this torch does not have it; takes {takes}")
    ranks = max((case.cluster.ranks_per_node for case in cases if case.device == "cuda"), default=0)
    if answer.gpus is not None and answer.gpus < ranks:
        raise UserError(f"cluster.ranks_per_node={ranks}: {ranks} ranks need a GPU each, and torch sees {answer.gpus}")
    wanted = [case.transport for case in cases if case.engine == "horovod"]
    if not wanted:
        return
    if answer.horovod_fault is not None:
        raise UserError(f"engine=horovod: Horovod does not import: {answer.horovod_fault}; {INSTALL} --force")
    if answer.horovod is None:
        raise UserError(f"engine=horovod: Horovod is not installed; {INSTALL}")
    built = [name for name, there in answer.horovod.items() if there]
    for transport in wanted:
        if transport not in built:
            gpu = " --gpu" if transport == "nccl" else ""
            raise UserError(
                f"transport={transport}: this Horovod was built without it; choices: {', '.join(built) or 'none'}, "
                f"or {INSTALL} --force{gpu}"
            )
    if "mpi" not in built and any(case.uses_mpi for case in cases if case.engine == "horovod"):
        raise UserError(
            f"horovod.controller=mpi: this Horovod was built without it; choices: gloo, null, or {INSTALL} --force"
        )


def judge_mpi(answer: probe.Answer, mpi: Mpi, python: str) -> None:
    """Raise UserError unless mpi4py is there and loads the MPI whose mpirun starts the ranks."""
    again = f"{python} -m pip install 'mpi4py>=4.1'"
    if answer.mpi is None:
        raise UserError(f"transport=mpi: DDP over MPI needs mpi4py: {answer.mpi_fault}; run: {again}")
    name = "MPICH" if mpi.flavour == "mpich" else "Open MPI"
    if name not in answer.mpi or mpi.version not in answer.mpi:
        raise UserError(
            f"transport=mpi: mpi4py loads {answer.mpi.split(',')[0]}, and {mpi.program} is of {name} {mpi.version}; "
            f"run: {again}, or name that library: cluster.env.{LIBMPI}=PATH"
        )
