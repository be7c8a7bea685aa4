"""`ringduel publish`: a study's records, configuration and report as a set that others can check and render again.

A set is `<published>/<machine>/<study>/`: `study.yaml`, `cases/`, `launches/*/*/` (records and raw samples, no logs),
`report/`, `NOTES.md` and `SHA256SUMS`. What names people and machines is taken out first, see `benches.scrub`.
"""

from __future__ import annotations

import getpass
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from analysis import notes, report, summary, table, tidy
from analysis.rows import Summary
from benches import manifest
from benches.driver import due
from benches.errors import UserError
from benches.explain import check
from benches.folder import load_study
from benches.rewrite import Rewriter
from launchers.supervise import CHECKOUT

NOTES = "NOTES.md"
REPORT = "report"
RENDERED = (NOTES, f"{REPORT}/")
"""What a later Ringduel may render otherwise: no part of the comparison with a set that is there."""
FORMATS = ("html", "md")
LONGEST_NAME = 60


@dataclass(frozen=True)
class Published:
    """Where a set is, and what was done for it."""

    path: Path
    new: bool
    """False: the same content was there."""
    files: int
    replaced: dict[str, int]
    """Places where something was taken out, by kind."""


def publish(folder: Path, home: Path, machine: str | None) -> Published:
    """Copy the finished study in `folder` to `home`/machine/study. machine: null: by its CPU and cores.

    Raises UserError where the study is not finished, holds nothing that was measured, what it holds cannot be read or
    is a link, or other content has that name.
    """
    if machine is not None:
        check("study.name", machine, "--name")
    refuse_links(folder)
    found = summary.reduce(table.read(folder))
    refuse_unfinished(folder, found)
    name = machine or machine_name(found)
    target = home / name / found.records.study.name
    for path in (home / name, target):
        if path.is_symlink():
            raise UserError(f"--name={name}: {path} is a symbolic link; a set is written to a folder")
    try:
        with staged(target) as stage:
            return _fill(stage, target, folder, found)
    except OSError as error:
        raise UserError(f"--published={home}: cannot be written: {error.strerror or error}") from error


def _fill(stage: Path, target: Path, folder: Path, found: Summary) -> Published:
    roots = {path: name for path, name in known_roots(folder).items() if path != "/"}
    rewriter = Rewriter(found.records, roots, hosts={socket.gethostname()}, users=own_names())
    rewriter.write(stage)
    replaced = dict(rewriter.scrubber.replaced)
    if target.exists():
        refuse_other(stage, target)
        return Published(target, False, len(manifest.read(target)), replaced)
    # As one finds it from the folder that holds results/; an absolute path would tell of this machine.
    known_as = target if not target.is_absolute() else Path(*target.parts[-2:])
    report.write(stage, stage / REPORT, FORMATS, known_as)
    aside = len(list((folder / "aside").glob("*/*")))
    text = notes.render(summary.reduce(table.read(stage)), known_as, rewriter.told(), aside)
    (stage / NOTES).write_text(text, encoding="utf-8")
    manifest.write(stage)
    stage.rename(target)
    return Published(target, True, len(manifest.read(target)), replaced)


def refuse_links(folder: Path) -> None:
    """Raise UserError for a symbolic link in the study: what it shows may be anybody's."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            raise UserError(f"study={folder}: {path} is a symbolic link; publish takes plain files and folders")


def refuse_unfinished(folder: Path, found: Summary) -> None:
    """Raise UserError unless every launch has ended, one at least well, and each record can be read."""
    launches = found.records.launches
    if unreadable := [f"{one.key}/{one.launch}: {one.reason}" for one in
                      launches[launches["status"].eq("unreadable")].itertuples()]:  # fmt: skip
        raise UserError(f"study={folder}: {unreadable[0]}")
    # A contestant that fails again and again is given up: its further launches are never due.
    failed = set(launches.loc[~launches["status"].isin(["ok", "missing", "interrupted"]), "key"])
    missing = [turn for turn in due(load_study(folder))[0] if turn.contestant.key not in failed]
    if missing or launches["status"].eq("interrupted").any():
        count = f"{len(missing)} launches are missing" if missing else "a launch was interrupted"
        raise UserError(f"study={folder}: is not finished: {count}; the same `ringduel run` goes on with it")
    if not any(row.ranked for row in found.rows):
        raise UserError(f"study={folder}: no launch ended well, so there is nothing to publish; see ringduel report")


def machine_name(found: Summary) -> str:
    """`amd-epyc-2-cores`, by the records. Raises UserError where they name none or several."""
    records = found.records
    machines = sorted({tidy.machine(records, place) for place in range(len(records.case_ids))} - {""})
    if len(machines) != 1:
        told = "; ".join(machines) or "none"
        raise UserError(f"--name: the records name {len(machines)} machines ({told}); give a name")
    plain = re.sub(r"\((?:r|tm|c)\)", "", machines[0].lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].strip("-")


def known_roots(folder: Path) -> dict[str, str]:
    """What to call the folders that this process knows; the records know further ones."""
    return {str(Path.home()): "home", str(CHECKOUT): "checkout", str(folder.resolve()): "study"}


def own_names() -> set[str]:
    """The account of this process; empty where it has none."""
    with suppress(KeyError, OSError):
        return {getpass.getuser()}
    return set()


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder beside `target`, gone in the end unless it was renamed: a set is there whole or not at all."""
    made = [path for path in (target.parent, *target.parent.parents) if not path.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    stage.chmod(0o755)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        for path in made:
            # Not empty: the set is there.
            with suppress(OSError):
                path.rmdir()


def refuse_other(stage: Path, target: Path) -> None:
    """Raise UserError unless the set that is there is sound and holds the same records."""
    if not manifest.is_published(target):
        raise UserError(f"study.name={target.name}: {target} is there and no published set; choose another --name")
    manifest.check(target)
    manifest.write(stage)
    old, new = ({name: found for name, found in manifest.read(one).items() if not name.startswith(RENDERED)}
                for one in (target, stage))  # fmt: skip
    if differing := sorted(name for name in old | new if old.get(name) != new.get(name)):
        more = f" and {len(differing) - 2} more" if len(differing) > 2 else ""
        raise UserError(
            f"study.name={target.name}: {target} holds other content: {', '.join(differing[:2])}{more}; nothing is "
            "overwritten, choose another --name"
        )
