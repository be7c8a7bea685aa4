"""`ringduel run`, `report`, `compare`, `publish`: from words to a study, its launches, its verdict, the next words."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from analysis import across, markdown, table, terminal
from analysis import report as reports
from analysis import summary as summaries
from benches import allocation, pods, preflight
from benches.config import Resolved, compose
from benches.driver import Driver, due
from benches.errors import UserError
from benches.folder import STUDY, StudyFolder, open_study
from benches.manifest import MANIFEST, holder
from benches.output import Terminal, print_json
from benches.publish import publish
from benches.submit import submit_and_follow
from benches.watch import Watch
from launchers import kubernetes
from launchers.lock import machine_lock
from launchers.slurm import SlurmSpec
from launchers.supervise import interrupts
from launchers.tools import Tools

DONE, FAILED, INTERRUPTED = 0, 1, 130


def run_command(words: list[str], config_dir: Path | None, as_json: bool, console: Console) -> int:
    """Run what is missing of the study that `words` ask for, then show and write what was found."""
    resolved = compose(words, config_dir)
    if resolved.kubernetes is not None and not kubernetes.inside():
        return pods.apply(resolved, words, config_dir, as_json)
    # Before the folder is made, or a study that cannot run would be frozen under its name; a finished one needs none.
    before = StudyFolder(resolved.results / resolved.study.name, resolved.study)
    if before.interrupted() or due(before)[0]:
        if resolved.slurm is not None and not allocation.inside():
            return submit_and_follow(resolved, words, config_dir, as_json, console)
        preflight.check(resolved.study, resolved.results, resolved.slurm)
    folder = open_study(resolved.study, resolved.results)
    # Again, since launches that were interrupted have been set aside.
    missing = len(due(folder)[0])
    _announce(resolved, folder, missing, console)
    finished = not missing or _run(folder, console, resolved.slurm)
    summary = summaries.reduce(table.read(folder.path))
    written = reports.write(folder.path, folder.path / "report")
    if as_json:
        print_json(summary.plain())
    else:
        terminal.show(summary, Terminal())
        _show_next(folder, words, config_dir, finished, written)
    if not finished:
        return INTERRUPTED
    return FAILED if summary.failures else DONE


def report_command(name: str | None, results: Path, out: Path | None, formats: list[str], as_json: bool) -> int:
    """Render a study again, from its records alone."""
    folder = find_study(name, results)
    summary = summaries.reduce(table.read(folder))
    # Nothing is written into a published set.
    own = results / f"{folder.name}.report" if holder(folder) else folder / "report"
    written = reports.write(folder, out or own, tuple(formats))
    if as_json:
        print_json(summary.plain())
    else:
        terminal.show(summary, Terminal())
        print("\nwrote", *map(str, written))
    return DONE


def compare_command(a: str, b: str, results: Path, fail_on_regression: bool, as_json: bool) -> int:
    """Two studies joined on case, as Markdown for a pull request; 1 where a regression is asked to fail."""
    found = across.compare(find_study(a, results), find_study(b, results))
    if as_json:
        print_json(across.plain(found))
    else:
        print(markdown.render(across.document(found)), end="")
    return FAILED if fail_on_regression and found.regressions else DONE


def publish_command(name: str, results: Path, home: Path, machine: str | None, as_json: bool) -> int:
    """Copy a finished study to a set that others can check, without what names people and machines."""
    found = publish(find_study(name, results), home, machine)
    if as_json:
        print_json(asdict(found) | {"path": str(found.path)})
    elif found.new:
        took = ", ".join(f"{kind} {count}" for kind, count in found.replaced.items()) or "nothing was found"
        print(f"published {found.files} files: {found.path}\ntaken out, in places: {took}")
        print(f"check it: (cd {shlex.quote(str(found.path))} && sha256sum --check {MANIFEST})")
    else:
        print(f"was published before with the same records: {found.path}")
    return DONE


def find_study(name: str | None, results: Path) -> Path:
    """A study by folder or by name; the newest in `results` when none is named. Raises UserError."""
    if name is None:
        found = sorted(results.glob(f"*/{STUDY}"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise UserError(f"results={results}: holds no study; run one: ringduel run experiment=smoke")
        return found[-1].parent
    for folder in (Path(name), results / name):
        if (folder / STUDY).is_file():
            return folder
    names = ", ".join(sorted(path.parent.name for path in results.glob(f"*/{STUDY}"))) or "none"
    raise UserError(f"{name}: neither a study's folder nor a study in {results}; studies there: {names}")


def _announce(resolved: Resolved, folder: StudyFolder, missing: int, console: Console) -> None:
    for warning in resolved.warnings:
        _warn(console, warning)
    study = folder.study
    alive = len({contestant.key for contestant in study.contestants})
    if not missing:
        text = f"study {study.name}: finished before; rendering it again from its records"
    elif missing < alive * study.launches:
        text = f"study {study.name}: {alive} contestants, goes on with the {missing} launches that are missing"
    else:
        text = f"study {study.name}: {alive} contestants, {missing} launches; records go to {folder.path}"
    console.print(text, markup=False, highlight=False)


def _warn(console: Console, text: str) -> None:
    console.print(Text.assemble(("warning: ", "yellow"), text))


def _run(folder: StudyFolder, console: Console, slurm: SlurmSpec | None) -> bool:
    with machine_lock(folder.study.name) as others:
        for other in others:
            text = f"study {other.study} (process {other.pid}) is running on this machine; each disturbs the other"
            _warn(console, text)
        with (
            interrupts() as stop,
            Watch(console, folder.study) as watch,
            Driver(folder, Tools(), watch, stop, slurm) as driver,
        ):
            return driver.run()


def _show_next(
    folder: StudyFolder, words: list[str], config_dir: Path | None, finished: bool, written: list[Path]
) -> None:
    """The next commands, as they must be typed."""
    path = shlex.quote(_short(folder.path))
    own = ["--config-dir", str(config_dir)] if config_dir else []
    again = shlex.join(["ringduel", "run", *own, *words])
    print()
    if not finished:
        print(f"Interrupted. To go on:   {again}")
    reports_written = [path for path in written if path.suffix == ".html"]
    print(f"Report:                  {_short(reports_written[0]) if reports_written else path}")
    print(f"Render it again:         ringduel report {path}")
    print(f"The exact commands:      {shlex.join(['ringduel', 'plan', *own, *words])}")
    kept = [word for word in words if not word.startswith(("study.launches=", "study.name="))]
    more = 2 * max(folder.study.launches, 3)
    surer = ["ringduel", "run", *own, *kept, f"study.launches={more}", f"study.name={folder.study.name}-{more}"]
    print(f"More launches (surer):   {shlex.join(surer)}")


def _short(path: Path) -> str:
    """Relative to the current folder where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
