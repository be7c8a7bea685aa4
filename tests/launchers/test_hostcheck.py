"""What hosts are asked before ranks start, and the one line for each fault."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benches.errors import UserError
from launchers.hostcheck import Answer, ask, check, parse
from launchers.remote import Ssh

HOSTS = ("a", "b")
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "horovod": "0.28.1", "mpi4py": None, "numpy": "2.0"}
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2"}
A = Answer("a", 0.0, 100.0, VERSIONS, "abc", ("eth0", "ib0", "lo"), ADDRESSES)
B = replace(A, name="b", offset_s=-0.2)


def test_hosts_that_agree_pass() -> None:
    assert check(HOSTS, [A, B], "ib0") == []
    assert check(HOSTS, [A, B], None) == []
    assert check(("a",), [A], None) == []


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (replace(B, versions={**VERSIONS, "torch": "2.14.1"}), "torch 2.14.1 there, 2.13.0 on a; install the same"),
        (replace(B, versions={**VERSIONS, "horovod": None}), "horovod None there, 0.28.1 on a"),
        (replace(B, versions={**VERSIONS, "python": "3.12.1"}), "python 3.12.1 there, 3.11.7 on a"),
        (replace(B, code="abd"), "another state of this project at"),
        (replace(B, name="a"), "is the same machine as a (a)"),
        (replace(B, addresses={**ADDRESSES, "b": "127.0.1.1"}), "takes b for 127.0.1.1, where no other reaches it"),
        (replace(B, addresses={**ADDRESSES, "a": "127.0.0.1"}), "takes a for 127.0.0.1, where no other reaches it"),
        (replace(B, addresses={**ADDRESSES, "a": None}), "does not know a; add it to its /etc/hosts"),
    ],
)
def test_a_fault_is_one_line(second: Answer, said: str) -> None:
    with pytest.raises(UserError) as error:
        check(HOSTS, [A, second], None)
    assert str(error.value).startswith(f"cluster.hosts=b: {said}")
    assert "\n" not in str(error.value)


def test_a_host_alone_may_call_itself_loopback() -> None:
    assert check(("a",), [replace(A, addresses={"a": "127.0.1.1"})], None) == []


def test_a_device_that_a_host_lacks_names_those_it_has() -> None:
    with pytest.raises(UserError, match=r"^cluster.nic=ib0: b has no such device; choices: ens1, lo$"):
        check(HOSTS, [A, replace(B, nics=("ens1", "lo"))], "ib0")


def test_a_wrong_clock_is_a_warning() -> None:
    assert check(HOSTS, [A, replace(B, offset_s=-75.0)], None) == ["b: its clock is -75.0 s from ours"]


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        (255, "ssh: Could not resolve hostname a: Name or service not known\n", "ssh fails: ssh: Could not resolve"),
        (
            255,
            "me@a: Permission denied (publickey).\n",
            "ssh fails: me@a: Permission denied (publickey).; `ssh a true`",
        ),
        (127, "sh: 1: exec: py: not found\n", "py does not run there (sh: 1: exec: py: not found); install the same"),
        (None, "", "no answer within"),
        (1, "", "py does not run there (no answer)"),
        (0, "", "py does not answer there (no answer); install the same environment"),
        (0, "This account is closed.\n", "py does not answer there (This account is closed.)"),
    ],
)
def test_a_host_that_does_not_answer_is_one_line(code: int | None, text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse("a", "py", code, text, 0.0)
    assert str(error.value).startswith(f"cluster.hosts=a: {said}")
    assert "\n" not in str(error.value)


def test_a_real_answer(tmp_path: Path) -> None:
    """Through a stand-in for ssh that, like sshd, gives a shell the joined words after a welcome, before a warning."""
    program = tmp_path / "ssh"
    skip = 'while [ "$1" = -o ]; do shift 2; done; shift'
    program.write_text(f'#!/bin/sh\n{skip}\ncd /\necho welcome\nsh -c "$*" || exit\necho goodbye >&2\n')
    program.chmod(0o755)
    answer = ask("here", sys.executable, ("localhost", "no such.host"), Ssh(str(program)))
    assert answer.name == socket.gethostname()
    assert abs(answer.offset_s) < 5
    assert answer.free_gib > 0
    assert answer.versions["torch"]
    assert "lo" in answer.nics
    assert answer.addresses["localhost"] == "127.0.0.1"
    assert answer.addresses["no such.host"] is None
    assert len(answer.code) == 12
    with pytest.raises(UserError, match=r"^cluster.hosts=here: /nowhere/python does not run there"):
        ask("here", "/nowhere/python", (), Ssh(str(program)))
