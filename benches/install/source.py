"""Horovod's source: one release from the package index, pinned by SHA-256, with the patch of this tree applied."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from benches.install import BuildError
from benches.install.steps import Steps, pip

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""Of `horovod-0.28.1.tar.gz` as the package index has it."""

PATCH = Path(__file__).with_name(f"horovod-{VERSION}.patch")

DOWNLOAD_LIMIT_S = 900


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verify(archive: Path) -> None:
    """Raises BuildError where the archive is not the pinned one."""
    found = digest(archive)
    if found != SHA256:
        raise BuildError(f"{archive}: SHA-256 {found} is not the pinned {SHA256}; nothing of it was run")


def fetch(cache: Path, env: Mapping[str, str], steps: Steps) -> Path:
    """The verified archive: from the cache, else by pip, which checks the hash before it runs anything of it."""
    archive = cache / f"horovod-{VERSION}.tar.gz"
    if archive.exists() and digest(archive) == SHA256:
        return archive
    requirement = steps.work / "horovod.txt"
    requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes"]
    command = [*pip(), "download", *options, "-d", str(steps.work), "-r", str(requirement)]
    steps.run(f"fetch horovod {VERSION}", command, env=env, limit_s=DOWNLOAD_LIMIT_S)
    fetched = steps.work / archive.name
    verify(fetched)
    cache.mkdir(parents=True, exist_ok=True)
    # Copied under another name first: a copy cut short must not pass for the archive.
    partial = Path(shutil.copy(fetched, cache / f".{archive.name}.{steps.work.name}"))
    return partial.replace(archive)


def unpack(archive: Path, into: Path) -> Path:
    """Unpack a verified archive; returns its one folder."""
    with tarfile.open(archive) as bundle:
        if hasattr(tarfile, "data_filter"):
            bundle.extractall(into, filter="data")
        else:
            bundle.extractall(into)
    return into / f"horovod-{VERSION}"


def patch(source: Path, env: Mapping[str, str], steps: Steps, diff: Path = PATCH) -> None:
    """Apply the patch, every hunk where it says or not at all. `env` must find `patch_ng`."""
    command = [sys.executable, "-m", "patch_ng", "-p1", "-d", str(source), str(diff)]
    steps.run("patch", command, env=env, limit_s=60)
