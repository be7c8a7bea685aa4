"""What can be known to fail before any rank starts. `check` raises UserError; it starts one short process for each
interpreter of the study, since only that can say what it imports."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import msgspec

from benches import probe
from benches.errors import UserError
from benches.spec import Case, Study, plain
from benches.workloads import datasets
from launchers.supervise import output

CHECKOUT = Path(__file__).resolve().parent.parent
LIMIT_S = 180.0
"""A cold import of torch from a network disk takes a minute; more is a hang."""
START = "import sys; sys.path = [sys.argv[1], *filter(None, sys.path), sys.argv[2]]; import benches.probe as p; "
INSTALL = "run: ringduel install-horovod"


def check(study: Study, results: Path) -> None:
    """Raise UserError where an interpreter, folder, data set, model or transport of the study is not there."""
    cases = list({contestant.case.id: contestant.case for contestant in study.contestants}.values())
    check_results(results)
    for case in cases:
        check_interpreter(case.python)
        datasets.check(case)
    for python in {case.python for case in cases}:
        own = [case for case in cases if case.python == python]
        judge(ask(python, own), own)


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


def ask(python: str | None, cases: list[Case]) -> probe.Answer:
    """What the interpreter says of these cases' models and of Horovod."""
    models = {json.dumps(plain(case.model), sort_keys=True): plain(case.model) for case in cases}
    request = {"models": list(models.values()), "horovod": any(case.engine == "horovod" for case in cases)}
    argv = [python or sys.executable, "-c", f"{START}p.main(sys.argv[3])", str(CHECKOUT), str(Path.cwd())]
    code, text = output([*argv, json.dumps(request)], limit_s=LIMIT_S)
    answers = [line for line in text.splitlines() if line.startswith(probe.MARK)]
    if code != 0 or not answers:
        silent = f"no answer within {LIMIT_S:g} s" if code is None else f"exit status {code}"
        last = (text.strip().splitlines() or [silent])[-1]
        raise UserError(f"python={python or sys.executable}: cannot run ranks: {last}")
    return msgspec.json.decode(answers[-1].removeprefix(probe.MARK), type=probe.Answer)


def judge(answer: probe.Answer, cases: list[Case]) -> None:
    """Raise UserError where the answer says that one of the cases cannot run."""
    if answer.fault is not None:
        raise UserError(answer.fault)
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
