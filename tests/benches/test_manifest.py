"""A published set says of itself whether it is what was published."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benches import manifest
from benches.errors import UserError

SUM = "0" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of two files."""
    home = tmp_path / "set"
    (home / "a").mkdir(parents=True)
    (home / "a" / "one").write_text("1")
    (home / "two words").write_text("2")
    manifest.write(home)
    return home


def test_a_set_fits_what_was_written(folder: Path) -> None:
    manifest.check(folder)
    assert sorted(manifest.read(folder)) == ["a/one", "two words"]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum")
def test_coreutils_read_it_too(folder: Path) -> None:
    subprocess.run(["sha256sum", "--strict", "--check", manifest.MANIFEST], cwd=folder, check=True, timeout=60)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda home: (home / "a" / "one").write_text("x"), "a/one was changed"),
        (lambda home: (home / "a" / "one").unlink(), "a/one is missing"),
        (lambda home: (home / "new").write_text(""), "new was not published"),
        (lambda home: (home / "link").symlink_to("two words"), "link is a symbolic link"),
        (lambda home: (home / manifest.MANIFEST).write_bytes(b"\xff"), "SHA256SUMS cannot be read"),
        (lambda home: (home / manifest.MANIFEST).write_text("nonsense\n"), "SHA256SUMS, line 1"),
        (lambda home: (home / manifest.MANIFEST).write_text(""), "a/one was not published"),
    ],
)
def test_what_does_not_fit_is_said(folder: Path, spoil: Callable[[Path], object], said: str) -> None:
    spoil(folder)
    with pytest.raises(UserError, match=said):
        manifest.check(folder)


@pytest.mark.parametrize(
    "name",
    ["../one", "/etc/passwd", "a/../../x", "./a/one", "a//one", ".", "..", "a\\..\\x", "a/\x1bone", "SHA256SUMS"],
)
def test_a_manifest_cannot_leave_its_folder(folder: Path, name: str) -> None:
    with (folder / manifest.MANIFEST).open("a") as stream:
        stream.write(f"{SUM}  {name}\n")
    with pytest.raises(UserError, match="SHA256SUMS, line 3: takes a SHA-256 and a file inside"):
        manifest.check(folder)


def test_a_name_stands_once(folder: Path) -> None:
    path = folder / manifest.MANIFEST
    path.write_text(path.read_text() * 2)
    with pytest.raises(UserError, match="line 3"):
        manifest.read(folder)


def test_a_link_in_place_of_the_manifest_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / manifest.MANIFEST).rename(tmp_path / "elsewhere")
    (folder / manifest.MANIFEST).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a symbolic link"):
        manifest.check(folder)


def test_the_set_around_a_path_is_found(folder: Path) -> None:
    assert manifest.holder(folder / "a" / "new" / "er") == folder
    assert manifest.holder(folder.parent) is None
