"""`make beyond ARGS=STUDY`: DDP and Horovod beyond speed, measured here, into `beyond.json` of that study's folder.

What installed files and tools say (size, build, frameworks, changed lines), and what two ranks over gloo show under
torchrun and horovodrun: reductions in a profile, lines of log, what comes after a rank is killed. About a minute.
`ringduel report STUDY` then has the rows, and `ringduel publish STUDY` takes the file along.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import difflib
import json
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from benches import measured
from benches.commands import find_study
from benches.errors import UserError
from benches.host import cpu_name
from benches.install import horovod, plan
from benches.install.build import SECONDS
from benches.manifest import holder
from benches.measured import Beyond, Finding
from launchers import horovodrun, torchrun
from launchers.spec import Command, LaunchSpec
from launchers.supervise import CHECKOUT, Outcome, output, run
from launchers.tools import Tools

BARE = Path(__file__).parent / "bare"
RANKS = 2
LIMIT_S = 120.0
MIB = 2**20
# Not DETAIL: under the profiler torch 2.14.1 then dies by SIGSEGV.
SWITCHES = {"ddp": {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO"},
            "horovod": {"HOROVOD_LOG_LEVEL": "debug"}}  # fmt: skip
ENGINES = tuple(SWITCHES)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write. Exit status 2 and one line on stderr for the user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m benches.checks.beyond", description=__doc__)
    parser.add_argument("study", help="folder or name")
    parser.add_argument("--results", type=Path, default=Path("results/runs"), help="where studies lie (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        folder = find_study(options.study, options.results)
        if holder(folder) or (folder / measured.BEYOND).exists():
            raise UserError(f"study={folder}: was published or measured before; nothing is overwritten")
        print(measured.write(folder, measure()))
    except UserError as error:
        print(f"beyond: {error}", file=sys.stderr)
        return 2
    return 0


def measure() -> Beyond:
    """Everything. Raises UserError where Horovod is not here."""
    if not Tools().packages(sys.executable).horovod:
        raise UserError("horovod: not in this environment; ringduel install-horovod builds it")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    machine = f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"
    return Beyond(measured_at=now, machine=machine, findings=(*installed(), *ran()))


def installed() -> Iterator[Finding]:
    """What files and tools say."""
    torch, own = (sum(map(size_mb, names)) for names in (closure("torch"), ["horovod"]))
    yield Finding(
        topic="installed size, MiB",
        ddp=f"{torch:.0f}",
        horovod=f"{torch + own:.0f}, of these {own:.0f} its own",
        source="sizes in RECORD of torch and all it requires here, and of horovod",
    )
    yield Finding(
        topic="time to build it, s",
        ddp="0: it is a part of torch",
        horovod=build_time(),
        source="the compiling step of `ringduel install-horovod`, from the wheel's cache",
    )
    yield Finding(
        topic="frameworks of the build",
        ddp="PyTorch",
        horovod=frameworks(output([*Tools().horovodrun(sys.executable), "--check-build"], LIMIT_S)[1]),
        source="horovodrun --check-build",
    )
    yield Finding(
        topic="lines of a training script that change",
        ddp=changed_lines("ddp_gloo.py"),
        horovod=changed_lines("horovod_cpu.py"),
        source="from benches/checks/bare/local.py to ddp_gloo.py and horovod_cpu.py, up to their main",
    )


def closure(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """A distribution and the installed ones that it requires."""
    found = {name}
    for text in metadata.requires(name) or []:
        need = Requirement(text)
        wanted = need.marker is None or need.marker.evaluate({"extra": ""})
        if wanted and need.name not in seen | found:
            try:
                metadata.version(need.name)
            except metadata.PackageNotFoundError:
                continue
            found |= closure(need.name, seen | frozenset(found))
    return found


def size_mb(name: str) -> float:
    """Of one installed distribution, by its RECORD."""
    return sum(path.size or 0 for path in metadata.files(name) or []) / MIB


def build_time() -> str:
    """Of the Horovod that is installed; empty where its wheel is no longer in the cache."""
    path = plan.cache(os.environ) / str(horovod.build_info().get("key")) / SECONDS
    return f"{json.loads(path.read_text()):.0f}" if path.exists() else ""


def frameworks(said: str) -> str:
    """Those that `horovodrun --check-build` marks."""
    listed = said.partition("Available Frameworks:")[2].partition("Available Controllers:")[0]
    return ", ".join(re.findall(r"\[X\] (.+)", listed))


def changed_lines(name: str) -> str:
    """`−2 +5` from the bare script in one process to this one."""
    before, after = (body((BARE / script).read_text()) for script in ("local.py", name))
    signs = [line[0] for line in difflib.ndiff(before, after)]
    return f"−{signs.count('-')} +{signs.count('+')}"


def body(text: str) -> list[str]:
    """The lines of a script after its docstring and before its main, without blank ones."""
    first = ast.parse(text).body[0].end_lineno or 0
    lines = text.partition("\nif __name__")[0].splitlines()[first:]
    return [line for line in lines if line.strip()]


def ran() -> Iterator[Finding]:
    """What two ranks show."""
    with tempfile.TemporaryDirectory(prefix="ringduel-beyond-") as home:
        shown = {name: Trial(name, Path(home)) for name in ENGINES}
        for trial in shown.values():
            trial.profile()
        yield Finding(
            topic="reductions of one step in torch.profiler's trace",
            **{name: str(trial.said["profiled"]) for name, trial in shown.items()},
            source="events of rank 0 named *allreduce* or *all_reduce*, one step, 2 ranks over gloo",
        )
        yield Finding(
            topic="reductions of one step in a trace of its own",
            ddp="has none",
            horovod=str(shown["horovod"].said["timeline"]),
            source="tensors of rank 0 in the timeline that hvd.start_timeline began, the same step",
        )
        yield Finding(
            topic="lines of log of such a run",
            **{name: f"{trial.log_lines} ({told(SWITCHES[name])})" for name, trial in shown.items()},
            source="output of both ranks with that switch",
        )
        yield Finding(
            topic="after a rank was killed, s",
            **{name: trial.kill() for name, trial in shown.items()},
            source="SIGKILL of rank 1 after a step, to the launcher's end with nothing left, or to the first new step",
        )


def told(switch: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in switch.items())


class Trial:
    """Launches of one engine's `beyond_rank`."""

    def __init__(self, engine: str, home: Path) -> None:
        self.engine, self.home = engine, home / engine
        self.home.mkdir()
        self.said: dict[str, int] = {}
        self.log_lines = 0

    def profile(self) -> None:
        """One step under the profiler, with the engine's log switched on."""
        outcome, log = self._run("profile", SWITCHES[self.engine] | {"HOROVOD_TIMELINE": "DYNAMIC"})
        if outcome.status != "ok":
            raise UserError(f"{self.engine}: the profiled step failed: {outcome.reason}; {log[-300:]}")
        self.said = json.loads((self.home / "profile.json").read_text())
        self.log_lines = len(log.splitlines())

    def kill(self) -> str:
        """What came after: `3.1: the launcher ended`, or `9.4: all ranks were started again`."""
        outcome, _ = self._run("kill", {})
        ended, killed_at = time.time(), float((self.home / "killed").read_text())
        found = f"{ended - killed_at:.1f}: {'it went on' if outcome.status == 'ok' else 'launch ended'}"
        again = self.home / "again"
        return f"{float(again.read_text()) - killed_at:.1f}: all ranks were started again" if again.exists() else found

    def _run(self, what: str, env: dict[str, str]) -> tuple[Outcome, str]:
        spec = LaunchSpec(
            python=sys.executable,
            args=("-m", "benches.checks.beyond_rank", self.engine, what, str(self.home)),
            nodes=1,
            ranks_per_node=RANKS,
            cwd=str(CHECKOUT),
            env={"OMP_NUM_THREADS": "1", **env},
        )
        log = self.home / f"{what}.log"
        outcome = run(self._command(spec), log=log, limit_s=LIMIT_S, token=uuid.uuid4().hex)
        return outcome, log.read_text(errors="replace")

    def _command(self, spec: LaunchSpec) -> Command:
        if self.engine == "horovod":
            return horovodrun.command(spec, Tools().horovodrun(sys.executable))
        command = torchrun.command(spec)
        # One restart, which is torchrun's way to recover.
        argv = tuple(word.replace("--max-restarts=0", "--max-restarts=1") for word in command.argv)
        return Command(argv, command.env, command.cwd)


if __name__ == "__main__":
    sys.exit(main())
