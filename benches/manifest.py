"""`SHA256SUMS` of a published set: names every file in it, and whoever reads the set checks it first.

The format is that of coreutils: `sha256sum --check SHA256SUMS` inside the folder says the same without Ringduel.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from benches.errors import UserError

MANIFEST = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  (.+)")
SHOWN = 3


def is_published(folder: Path) -> bool:
    """Whether the folder is a published set, sound or not."""
    return (folder / MANIFEST).is_symlink() or (folder / MANIFEST).exists()


def holder(path: Path) -> Path | None:
    """The published set that holds `path`, which need not exist; None where it lies in none."""
    here = path.absolute()
    return next((folder for folder in (here, *here.parents) if is_published(folder)), None)


def write(folder: Path) -> None:
    """Name every file that is in the folder. Raises UserError for a symbolic link or an odd name among them."""
    sums = {name: digest(folder / name) for name in sorted(_names(folder))}
    (folder / MANIFEST).write_text("".join(f"{found}  {name}\n" for name, found in sums.items()))


def check(folder: Path) -> None:
    """Raise UserError unless the folder holds just the files that its manifest names, each as it was."""
    wanted, there = read(folder), set(_names(folder))
    faults = [f"{name} is missing" for name in wanted if name not in there]
    faults += [f"{name} was not published" for name in sorted(there - set(wanted))]
    both = {name: known for name, known in wanted.items() if name in there}
    faults += [f"{name} was changed" for name, known in both.items() if digest(folder / name) != known]
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise UserError(
            f"study={folder}: is not what was published: {'; '.join(faults[:SHOWN])}{more}; restore it, or copy it "
            f"without {MANIFEST} to read it all the same"
        )


def read(folder: Path) -> dict[str, str]:
    """SHA-256 by file name. Raises UserError where it cannot be read or names what lies outside the folder."""
    path = folder / MANIFEST
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise UserError(f"study={folder}: {MANIFEST} cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = LINE.fullmatch(line)
        if match is None or not inside(match[2]) or match[2] in found:
            raise UserError(f"study={folder}: {MANIFEST}, line {number}: takes a SHA-256 and a file inside, each once")
        found[match[2]] = match[1]
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def inside(name: str) -> bool:
    """Whether a name is that of a file below the folder, in its plainest form."""
    parts = PurePosixPath(name).parts
    plain = name.isprintable() and "\\" not in name and "/".join(parts) == name
    return plain and ".." not in parts and not name.startswith("/") and name not in (".", MANIFEST)


def _names(folder: Path) -> Iterator[str]:
    """Files below the folder but the manifest. Raises UserError for what is neither a file nor a folder."""
    if (folder / MANIFEST).is_symlink():
        raise UserError(f"study={folder}: {MANIFEST} is a symbolic link; a published set holds none")
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise UserError(f"study={folder}: {name} is a symbolic link; a published set holds none")
        if path.is_file() and name != MANIFEST:
            if not inside(name):
                raise UserError(f"study={folder}: {name!r}: a published set takes no such file name")
            yield name
