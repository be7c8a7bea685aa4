"""Compilers are tried before minutes are spent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benches.errors import UserError
from benches.install import compiler


def env_with(tmp_path: Path, script: str, *others: str) -> dict[str, str]:
    """A PATH with `tool` that runs this script, and others that do nothing."""
    for name, text in (("tool", script), *((name, "exit 0") for name in others)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": str(tmp_path), "CXX": str(tmp_path / "tool")}


def python_header(tmp_path: Path) -> Path:
    (tmp_path / "Python.h").touch()
    return tmp_path


def test_the_compiler_here_will_do(tmp_path: Path) -> None:
    assert compiler.check(os.environ, 17, python_header(tmp_path))


def test_one_that_is_too_old_is_named(tmp_path: Path) -> None:
    script = 'case "$*" in *--version*) echo "g++ 7.5.0";; *c++20*) exit 1;; esac'
    env = env_with(tmp_path, script, "make")
    assert compiler.check(env, 17, python_header(tmp_path)) == "g++ 7.5.0"
    with pytest.raises(UserError, match=r"g\+\+ 7\.5\.0 does not compile C\+\+20, which torch needs; set CXX"):
        compiler.check(env, 20, python_header(tmp_path))


def test_what_is_missing_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"c\+\+: not found; install g\+\+, or set CXX"):
        compiler.check({"PATH": str(tmp_path)}, 17)
    env = env_with(tmp_path, "exit 0")
    with pytest.raises(UserError, match="make: not found; install make"):
        compiler.check(env, 17)
    with pytest.raises(UserError, match=r"Python\.h: missing; install Python's headers"):
        compiler.check(env_with(tmp_path, "exit 0", "make"), 17, tmp_path / "nowhere")
