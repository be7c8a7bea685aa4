"""`ringduel plan`: what `run` would do, with the commands that start it. Starts nothing; writes the case files only."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benches import allocation, clusters, pods, submit
from benches.config import START_UP_S, Resolved, compose
from benches.driver import command_for
from benches.folder import StudyFolder, write_cases
from benches.output import Terminal, print_json
from benches.preflight import check_results
from benches.schedule import Turn, once, turns
from benches.spec import Study
from launchers import kubernetes
from launchers.choose import launcher
from launchers.slurm import SlurmSpec
from launchers.spec import Command
from launchers.tools import Tools


@dataclass(frozen=True)
class Planned:
    """One case of the study: what starts it, how often."""

    turn: Turn
    launcher: str
    command: Command
    launches: int
    stand_ins: dict[str, str]
    """What in the command is decided only when the launch starts, and what it will then be; empty: it runs as it
    stands."""

    def plain(self) -> dict[str, Any]:
        case = self.turn.case
        return {
            "name": self.turn.contestant.name,
            "point": self.turn.contestant.point,
            "case": case.id,
            "cell": case.cell,
            "world_size": case.cluster.world_size,
            "heat": self.turn.contestant.heat,
            "launcher": self.launcher,
            "launches": self.launches,
            "command": self.command.text(),
            "stand_ins": self.stand_ins,
        }


def plan_command(words: list[str], config_dir: Path | None, as_json: bool) -> int:
    """Show the plan of the study that `words` ask for."""
    resolved = compose(words, config_dir)
    check_results(resolved.results)
    folder = StudyFolder(resolved.results / f"{resolved.study.name}.plan", resolved.study)
    write_cases(folder)
    planned = list(plan(resolved.study, folder, Tools(), resolved.slurm))
    submitted = resolved.slurm is not None and not allocation.inside()
    script = submit.script(resolved, words, config_dir, as_json=False) if submitted else None
    outside = resolved.kubernetes is not None and not kubernetes.inside()
    written = pods.write(resolved, words, config_dir, folder.path / "kubernetes") if outside else []
    if as_json:
        content = {"warnings": resolved.warnings, "script": script, "manifests": list(map(str, written))}
        print_json({**budget(resolved.study), **content, "cases": [one.plain() for one in planned]})
    else:
        show(resolved, planned, script, Terminal())
        _show_manifests(written)
    return 0


def plan(study: Study, folder: StudyFolder, tools: Tools, slurm: SlurmSpec | None = None) -> Iterator[Planned]:
    """Each case once, in the order of the study. slurm: what is asked of it."""
    for turn in (Turn(one, 0) for one in once(study.contestants)):
        out = folder.launch(turn.contestant, 0)
        place = clusters.planned(study, turn.case, slurm)
        command = command_for(turn, folder.case_file(turn.case), out, study.rounds, tools, place.nodes)
        later = clusters.stand_ins(place, command.text())
        yield Planned(turn, launcher(turn.case), command, study.launches, later)


def budget(study: Study) -> dict[str, Any]:
    """Launches, and bounds of their time: start-up alone, and every launch at its limit."""
    due = list(turns(study, range(study.launches)))
    least = len(due) * START_UP_S
    most = sum(turn.case.limit_s for turn in due)
    node_hours = sum(turn.case.limit_s * turn.case.cluster.nodes for turn in due) / 3600
    return {"study": study.name, "launches": len(due), "least_s": least, "most_s": most, "most_node_hours": node_hours}


def show(resolved: Resolved, planned: list[Planned], script: str | None, console: Console) -> None:
    """Print the plan, the commands last. script: what `run` gives to sbatch, None: nothing."""
    study, bounds = resolved.study, budget(resolved.study)
    console.print(
        f"study {study.name}: {len(planned)} contestants x {study.launches} launches, {study.rounds} blocks each, "
        f"schedule {study.schedule}",
        highlight=False,
    )
    console.print(
        f"time: at least about {bounds['least_s'] / 60:.0f} min for start-up alone, at most {bounds['most_s'] / 60:.0f}"
        f" min (every launch at its limit), that is {bounds['most_node_hours']:.1f} node-hours; one heat at a time",
        highlight=False,
    )
    for warning in resolved.warnings:
        console.print(f"warning: {warning}", markup=False, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("heat", "case", "contestant", "model", "ranks", "launcher"):
        table.add_column(title, justify="right" if title in ("heat", "ranks") else "left")
    for one in planned:
        case, heat = one.turn.case, str(one.turn.contestant.heat)
        cells = (heat, case.id, one.turn.contestant.name, case.model.name, str(case.cluster.world_size), one.launcher)
        table.add_row(*map(Text, cells))
    console.print(table)
    if script is not None:
        console.print("\nThe script that `run` gives to sbatch:\n")
        print(script)
    console.print("\nThe commands, as a shell takes them; each writes its record into the folder after --out:\n")
    _show_stand_ins(planned)
    if resolved.slurm is not None:
        console.print("(In an allocation, where nodes have other names than here.)\n", highlight=False)
    for one in planned:
        print(f"# {one.turn.contestant.name}, {one.turn.case.model.name}, {one.turn.case.cluster.world_size} ranks")
        print(one.command.text(), end="\n\n")


def _show_manifests(written: list[Path]) -> None:
    """Say where the manifests are and what takes them."""
    if not written:
        return
    print("The commands above are the launcher pod's. The manifest of the whole study, and those of single launches:\n")
    for path in written:
        print(f"kubectl apply -f {shlex.quote(str(path))}")


def _show_stand_ins(planned: list[Planned]) -> None:
    """Say what in the commands is decided only at the start; such a command does not run as it stands."""
    # What is decided for each launch has another word in each command; one tells enough.
    later = {meaning: word for one in reversed(planned) for word, meaning in reversed(one.stand_ins.items())}
    if not later:
        return
    print("# Virtual nodes are there only while `run` is: these commands do not run by hand. Decided at the start, and")
    print("# then to be read in command.sh beside each record:")
    for meaning, word in reversed(later.items()):
        print(f"#   {word}  {meaning}")
    print()
