"""Launches of small real processes, of which nothing may be left. Each test looks for its token at the end."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launchers.processes import TOKEN, members
from launchers.spec import Command
from launchers.supervise import POLL_S, Launch, Outcome, json_line, output, run

HANG = "sleep 60"
STUBBORN = "trap '' TERM INT; while :; do sleep 1; done"


@pytest.fixture
def token() -> Iterator[str]:
    """Of one launch; afterwards no process has it, and the driver has no child, thread or descriptor more."""
    before = held()
    token = uuid.uuid4().hex
    yield token
    assert members(token) == []
    assert held() == before


def guard_of(token: str) -> psutil.Process:
    """The guard of a launch; other tests of this process may have left children of their own."""
    [guard] = [child for child in psutil.Process().children() if token in child.cmdline()]
    return guard


def held() -> tuple[int, list[psutil.Process], int]:
    # What earlier tests of this process have left to the collector must not be let go in between.
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), psutil.Process().children(), threading.active_count()


def sh(text: str) -> Command:
    return Command(("sh", "-c", text))


def python(text: str) -> Command:
    return Command((sys.executable, "-S", "-c", text))


def until(path: Path, limit_s: float = 20.0) -> str:
    """The content of a file, once it has any."""
    deadline = time.monotonic() + limit_s
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)
    return path.read_text().strip()


def test_ok(token: str, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "launcher.log"
    text = f'echo "$A"; pwd; echo ${TOKEN}; echo error >&2; cat'
    command = Command(("sh", "-c", text), {"A": "a b"}, str(tmp_path))
    outcome = run(command, log=log, limit_s=20, token=token)
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("ok", None, 0)
    assert 0 < outcome.duration_s < 20
    assert log.read_text().splitlines() == ["a b", str(tmp_path), token, "error"]


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("exit 3", 3, "the launcher ended with status 3"),
        ("kill -9 $$", -9, "the launcher was killed by SIGKILL"),
        ("kill -SEGV $$", -11, "the launcher was killed by SIGSEGV"),
    ],
)
def test_failure_is_told_as_it_was(text: str, code: int, reason: str, token: str, tmp_path: Path) -> None:
    outcome = run(sh(text), log=tmp_path / "log", limit_s=20, token=token)
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("failed", reason, code)


def test_a_program_that_is_not_there(token: str, tmp_path: Path) -> None:
    outcome = run(Command(("/no/such program",)), log=tmp_path / "log", limit_s=20, token=token)
    assert (outcome.status, outcome.exit_code) == ("failed", 127)
    assert (tmp_path / "log").read_text() == "/no/such program: No such file or directory\n"


def test_limit(token: str, tmp_path: Path) -> None:
    outcome = run(sh(HANG), log=tmp_path / "log", limit_s=0.5, token=token)
    assert (outcome.status, outcome.reason) == ("timeout", "not done within its limit of 0.5 s")
    assert outcome.exit_code == -signal.SIGTERM
    assert outcome.duration_s < 0.5 + 10


def test_limit_of_what_ignores_sigterm(token: str, tmp_path: Path) -> None:
    outcome = run(sh(f"({STUBBORN}) & {STUBBORN}"), log=tmp_path / "log", limit_s=0.5, token=token)
    assert (outcome.status, outcome.exit_code) == ("timeout", -signal.SIGKILL)
    assert 3 < outcome.duration_s < 0.5 + 10


AWAY = """
import os, signal, time
reader, writer = os.pipe()
def away(clear):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(writer, b"%8d" % os.getpid())
            if clear:
                os.execve("/bin/sleep", ["sleep", "60"], {})
            time.sleep(60)
        os._exit(0)
away(False)
away(True)
for _ in range(2):
    print(os.read(reader, 8).decode().strip())
"""


def test_what_went_away_into_sessions_of_its_own_is_found(token: str, tmp_path: Path) -> None:
    """A grandchild that has left session, parent and (one of two) environment behind, when the launcher is done."""
    outcome = run(python(AWAY), log=tmp_path / "log", limit_s=30, token=token)
    pids = [int(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert outcome.status == "ok"
    assert 3 < outcome.duration_s < 10


def test_a_stopped_process_is_ended(token: str, tmp_path: Path) -> None:
    states: list[str] = []
    look = lambda pids: states.extend(psutil.Process(pid).status() for pid in pids)  # noqa: E731
    stopped = f"'{sys.executable}' -S -c 'import os; os.kill(os.getpid(), 19)'"
    outcome = run(sh(f"{stopped} & wait"), log=tmp_path / "log", limit_s=1, token=token, before_kill=look)
    assert states == [psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED]
    assert outcome.status == "timeout"
    assert outcome.duration_s < 4


def test_a_launcher_may_tidy_up_once_its_ranks_are_killed(token: str, tmp_path: Path) -> None:
    outcome = run(sh("trap '' TERM; sleep 60 & wait; echo tidied"), log=tmp_path / "log", limit_s=0.5, token=token)
    assert (outcome.status, outcome.exit_code) == ("timeout", 0)
    assert (tmp_path / "log").read_text() == "tidied\n"


def test_a_guard_killed_with_9_leaves_nothing(token: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    launch = Launch(
        sh(f'(setsid sh -c "echo > {there}; {STUBBORN}") & {HANG}'), log=tmp_path / "log", limit_s=30, token=token
    )
    with launch:
        until(there)
        assert len(members(token)) >= 3
        guard = guard_of(token)
        guard.kill()
        outcome = last(launch)
    assert (outcome.status, outcome.exit_code) == ("failed", -signal.SIGKILL)


def last(launch: Launch, limit_s: float = 15.0) -> Outcome:
    deadline = time.monotonic() + limit_s
    while (outcome := launch.poll()) is None:
        assert time.monotonic() < deadline
        launch.wait(0.05)
    return outcome


def test_check_gives_the_launcher_three_seconds(token: str, tmp_path: Path) -> None:
    outcome = run(sh(HANG), log=tmp_path / "log", limit_s=30, token=token, check=lambda: "rank 1: killed by SIGKILL")
    assert (outcome.status, outcome.reason) == ("failed", "rank 1: killed by SIGKILL")
    assert 3 < outcome.duration_s < 10


def test_check_lets_a_launcher_end_by_itself(token: str, tmp_path: Path) -> None:
    outcome = run(
        sh("sleep 0.3; exit 7"), log=tmp_path / "log", limit_s=30, token=token, check=lambda: "rank 1: broken"
    )
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("failed", "rank 1: broken", 7)
    assert outcome.duration_s < 3


def test_what_was_seen_of_a_launcher_that_was_killed_is_no_cause(token: str, tmp_path: Path) -> None:
    check = lambda: "rank 1: its agent is gone"  # noqa: E731
    outcome = run(sh("sleep 0.3; kill -9 $$"), log=tmp_path / "log", limit_s=30, token=token, check=check)
    assert (outcome.status, outcome.reason) == ("failed", "the launcher was killed by SIGKILL")
    assert outcome.launcher_killed


def test_a_launcher_that_we_end_was_not_killed(token: str, tmp_path: Path) -> None:
    outcome = run(sh(HANG), log=tmp_path / "log", limit_s=0.2, token=token)
    assert (outcome.status, outcome.launcher_killed) == ("timeout", False)


@pytest.mark.parametrize("code", [0, 1])
def test_check_has_the_last_word(code: int, token: str, tmp_path: Path) -> None:
    """A reason that is there only after the launcher's end is a better one than its exit status."""
    check = lambda: "rank 0: exited with status 3"  # noqa: E731
    with Launch(sh(f"exit {code}"), log=tmp_path / "log", limit_s=30, token=token, check=check) as launch:
        guard = guard_of(token)
        os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOWAIT)
        outcome = launch.poll()
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("failed", "rank 0: exited with status 3", code)


RANK = (
    "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1); print('up', flush=True); time.sleep(60)"
)


def test_ranks_that_hang_write_their_stacks_and_nobody_else_is_hit(token: str, tmp_path: Path) -> None:
    """The launcher, and a process without a handler for SIGUSR1, live on until SIGTERM."""
    other = "(trap 'echo other ended' TERM; sleep 60 & wait)"
    launcher = f"trap 'echo launcher ended' TERM; {other} & '{sys.executable}' -S -c \"{RANK}\" & wait; wait"
    log = tmp_path / "log"
    outcome = run(sh(launcher), log=log, limit_s=3, token=token)
    assert outcome.status == "timeout"
    lines = log.read_text().splitlines()
    assert lines[0] == "up"
    assert any('File "<string>", line 1' in line for line in lines)
    assert {"launcher ended", "other ended"} <= set(lines)


def test_before_kill_gets_the_processes_of_the_launch_launcher_first(token: str, tmp_path: Path) -> None:
    seen: list[str] = []
    names = lambda pids: seen.extend(psutil.Process(pid).name() for pid in pids)  # noqa: E731
    run(sh("sleep 60 & wait"), log=tmp_path / "log", limit_s=0.5, token=token, before_kill=names)
    assert seen == ["sh", "sleep"]


def test_several_alive_at_once(tmp_path: Path, token: str) -> None:
    tokens = [token, uuid.uuid4().hex, uuid.uuid4().hex]
    texts = ["exec sleep 60", "exit 3", "exec sleep 60"]
    launches = [
        Launch(sh(text), log=tmp_path / mark, limit_s=30, token=mark) for text, mark in zip(texts, tokens, strict=True)
    ]
    for launch in launches:
        launch.start()
    first, second, third = launches
    try:
        assert last(second).exit_code == 3
        assert first.poll() is None
        first.end("no longer wanted")
        ended = last(first)
        assert (ended.status, ended.reason, ended.exit_code) == ("interrupted", "no longer wanted", -signal.SIGTERM)
        assert third.poll() is None
        assert len(members(tokens[2])) == 1
    finally:
        for launch in launches:
            launch.close()
    assert [members(mark) for mark in tokens] == [[], [], []]


def test_an_error_of_the_caller_ends_the_launch(token: str, tmp_path: Path) -> None:
    def tick() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(sh(STUBBORN), log=tmp_path / "log", limit_s=30, token=token, tick=tick)


def test_tick_is_called_about_ten_times_a_second(token: str, tmp_path: Path) -> None:
    calls: list[float] = []
    outcome = run(
        sh("sleep 1"), log=tmp_path / "log", limit_s=30, token=token, tick=lambda: calls.append(time.monotonic())
    )
    assert 4 <= len(calls) <= outcome.duration_s / POLL_S + 2


def test_output() -> None:
    assert output(["sh", "-c", "echo out; echo err >&2; exit 4"], limit_s=20) == (4, "out\nerr\n")
    code, text = output(["sh", "-c", "echo begun; sleep 60"], limit_s=0.5)
    assert (code, text) == (None, "begun\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('welcome\n{"a": 1}\n[W1202 c10d.cpp] Warning: leaked\n{not JSON}\n', {"a": 1}),
        ('{"a": 1}\n{"a": 2}\n', {"a": 2}),
        ("[1]\nno answer\n", None),
        ("", None),
    ],
)
def test_an_answer_is_found_among_warnings(text: str, found: dict[str, int] | None) -> None:
    assert json_line(text) == found


def test_output_leaves_nothing(token: str) -> None:
    assert output([sys.executable, "-c", "print(1)"], limit_s=20) == (0, "1\n")
