"""The pinned source and its patch."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from pathlib import Path

import pytest

from benches.install import BuildError, source
from benches.install.steps import Steps

DIFF = """Notes on top, which are no part of it.

--- a/CMakeLists.txt
+++ b/CMakeLists.txt
@@ -1,4 +1,4 @@
 project(horovod CXX)

-set(CMAKE_CXX_STANDARD 14)
+set(CMAKE_CXX_STANDARD $ENV{RINGDUEL_CXX_STANDARD})
 set(CMAKE_CXX_STANDARD_REQUIRED ON)
"""
BEFORE = "project(horovod CXX)\n\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n"


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    (tmp_path / "work").mkdir()
    return Steps(tmp_path / "work", tmp_path / "build.log", io.StringIO())


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "horovod-0.28.1.tar.gz"
    archive.write_bytes(b"something else")
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(BuildError, match=f"SHA-256 {found} is not the pinned 92a43f5a"):
        source.verify(archive)
    monkeypatch.setattr(source, "SHA256", found)
    source.verify(archive)


def test_a_spoilt_archive_in_the_cache_is_fetched_again(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = b"the release"
    monkeypatch.setattr(source, "SHA256", hashlib.sha256(good).hexdigest())
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "horovod-0.28.1.tar.gz").write_bytes(b"cut sho")
    commands: list[list[str]] = []

    def download(name: str, argv: list[str], **_: object) -> None:
        commands.append(argv)
        (steps.work / "horovod-0.28.1.tar.gz").write_bytes(good)

    monkeypatch.setattr(steps, "run", download)
    assert source.fetch(cache, os.environ, steps).read_bytes() == good
    assert source.fetch(cache, os.environ, steps).read_bytes() == good
    assert len(commands) == 1
    assert "--require-hashes" in commands[0]
    requirement = (steps.work / "horovod.txt").read_text()
    assert requirement == f"horovod==0.28.1 --hash=sha256:{hashlib.sha256(good).hexdigest()}\n"


def test_unpack_refuses_paths_that_leave_the_folder(tmp_path: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no extraction filters")
    archive = tmp_path / "bad.tar.gz"
    with tarfile.open(archive, "w:gz") as bundle:
        entry = tarfile.TarInfo("../escaped")
        entry.size = 2
        bundle.addfile(entry, io.BytesIO(b"no"))
    with pytest.raises(tarfile.FilterError):
        source.unpack(archive, tmp_path / "into")
    assert not (tmp_path / "escaped").exists()


def test_the_patch_changes_what_it_names(tmp_path: Path, steps: Steps) -> None:
    diff = tmp_path / "x.patch"
    diff.write_text(DIFF)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "CMakeLists.txt").write_text(BEFORE)
    source.patch(tree, os.environ, steps, diff)
    assert (tree / "CMakeLists.txt").read_text() == BEFORE.replace(" 14", " $ENV{RINGDUEL_CXX_STANDARD}")


@pytest.mark.parametrize("text", [BEFORE.replace("14", "11"), None])
def test_a_patch_that_does_not_fit_is_an_error(tmp_path: Path, steps: Steps, text: str | None) -> None:
    diff = tmp_path / "x.patch"
    diff.write_text(DIFF)
    tree = tmp_path / "tree"
    tree.mkdir()
    if text is not None:
        (tree / "CMakeLists.txt").write_text(text)
    with pytest.raises(BuildError, match="patch: "):
        source.patch(tree, os.environ, steps, diff)


def test_the_head_of_the_patch_lists_its_files() -> None:
    text = source.PATCH.read_text()
    head, _, body = text.partition("--- a/")
    files = re.findall(r"^\+\+\+ b/(\S+)$", body, re.MULTILINE)
    assert re.findall(r"^  (\S+)  +\S", head, re.MULTILINE) == files
    assert len(files) == 6
