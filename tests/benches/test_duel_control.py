"""The control plane: who is let in, what is heard, and that nobody can block or forge it."""

from __future__ import annotations

import json
import socket
import stat
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import pytest

from benches.control import CONTROL, Control, Event, join


@pytest.fixture
def control() -> Iterator[Control]:
    with Control() as made:
        yield made


def heard(control: Control, enough: Callable[[list[Event]], bool], limit_s: float = 10) -> list[Event]:
    """What agents say until that is enough."""
    events: list[Event] = []
    deadline = time.monotonic() + limit_s
    while not enough(events):
        assert time.monotonic() < deadline, f"heard only {events}"
        events += control.wait([], 0.05)
    return events


def joined(control: Control, out: Path, rank: int) -> Connection:
    """An agent that the driver knows: it has said its rank."""
    agent = join(out, rank)
    assert agent is not None
    agent.send_bytes(json.dumps({"rank": rank}).encode())
    (event,) = heard(control, bool)
    assert event == Event("name", rank, {"rank": rank})
    return agent


def said(agent: Connection) -> dict[str, Any]:
    assert agent.poll(10), "no order came"
    return dict(json.loads(agent.recv_bytes()))


def address(out: Path) -> tuple[str, int]:
    host, port = json.loads((out / CONTROL).read_text())["address"]
    return host, port


def test_agents_of_a_launch_that_is_over_are_let_go(control: Control, tmp_path: Path) -> None:
    """Those that are still there then kill their ranks, on machines whose processes nobody sees from here."""
    control.invite(tmp_path, "name")
    agents = [joined(control, tmp_path, rank) for rank in (0, 1)]
    control.dismiss("other")
    control.send("name", 0, {"order": "block"})
    assert said(agents[0]) == {"order": "block"}
    control.dismiss("name")
    for agent in agents:
        assert agent.poll(10)
        with pytest.raises(EOFError):
            agent.recv_bytes()


def test_orders_reach_the_agent_that_they_are_for(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    agents = [joined(control, tmp_path, rank) for rank in (0, 1)]
    control.send("name", 1, {"order": "block", "block": 3})
    control.ping()
    assert said(agents[1]) == {"order": "block", "block": 3}
    assert [said(agent) for agent in agents] == [{"order": "ping"}] * 2
    control.send("name", 7, {"order": "stop"})
    control.send("other", 0, {"order": "stop"})
    assert not any(agent.poll(0.2) for agent in agents)


def test_it_listens_where_agents_were_invited_and_nowhere_else(control: Control, tmp_path: Path) -> None:
    """127.0.0.2 stands for the address at which another machine reaches this one."""
    agents = []
    for number, host in enumerate(("127.0.0.1", "127.0.0.2", "127.0.0.2")):
        (tmp_path / str(number)).mkdir()
        control.invite(tmp_path / str(number), "name", host)
        agents.append(joined(control, tmp_path / str(number), number))
    addresses = [address(tmp_path / str(number)) for number in range(3)]
    assert [host for host, _ in addresses] == ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
    assert addresses[1] == addresses[2]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", addresses[1][1]), 5)


def test_without_an_invitation_there_is_no_driver(tmp_path: Path) -> None:
    assert join(tmp_path, 0) is None


def test_the_secret_is_for_the_owner_alone_and_an_invitation_is_never_replaced(
    control: Control, tmp_path: Path
) -> None:
    control.invite(tmp_path, "name")
    assert stat.S_IMODE((tmp_path / CONTROL).stat().st_mode) == 0o600
    before = (tmp_path / CONTROL).read_text()
    with pytest.raises(FileExistsError):
        control.invite(tmp_path, "other")
    assert (tmp_path / CONTROL).read_text() == before


def test_two_drivers_have_two_secrets(control: Control, tmp_path: Path) -> None:
    entries = []
    with Control() as other:
        for number, one in enumerate((control, other)):
            (tmp_path / str(number)).mkdir()
            one.invite(tmp_path / str(number), "name")
            entries.append(json.loads((tmp_path / str(number) / CONTROL).read_text()))
    assert len({entry["secret"] for entry in entries}) == 2
    assert all(len(bytes.fromhex(entry["secret"])) == 32 for entry in entries)


def test_a_wrong_secret_is_turned_away(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    with pytest.raises(AuthenticationError):
        Client(address(tmp_path), authkey=b"x" * 32)
    entry = json.loads((tmp_path / CONTROL).read_text())
    (tmp_path / CONTROL).write_text(json.dumps({**entry, "secret": "00" * 32}))
    with pytest.raises(AuthenticationError):
        join(tmp_path, 0)
    assert not list(control.wait([], 0.2))
    control.ping()


def test_an_agent_does_not_trust_a_driver_without_the_secret(control: Control, tmp_path: Path) -> None:
    """Whoever has taken the driver's port since must not be obeyed."""
    with Control() as impostor:
        control.invite(tmp_path, "name")
        (tmp_path / "theirs").mkdir()
        impostor.invite(tmp_path / "theirs", "name")
        entry = json.loads((tmp_path / CONTROL).read_text())
        (tmp_path / CONTROL).write_text(json.dumps({**entry, "address": address(tmp_path / "theirs")}))
        with pytest.raises(AuthenticationError):
            join(tmp_path, 0)


def test_silent_and_garbling_clients_block_nobody(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    silent = [socket.create_connection(address(tmp_path)) for _ in range(20)]
    garbling = socket.create_connection(address(tmp_path))
    garbling.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 100)
    begun = time.monotonic()
    agent = joined(control, tmp_path, 0)
    assert time.monotonic() - begun < 5
    control.send("name", 0, {"order": "stop"})
    assert said(agent) == {"order": "stop"}
    for one in (*silent, garbling):
        one.close()


@pytest.mark.parametrize("hello", [b"[]", b"{}", b"nothing", b'{"launch": "name", "rank": "first"}', b"\xff"])
def test_one_that_says_not_who_it_is_is_turned_away(control: Control, tmp_path: Path, hello: bytes) -> None:
    control.invite(tmp_path, "name")
    secret = bytes.fromhex(json.loads((tmp_path / CONTROL).read_text())["secret"])
    stranger = Client(address(tmp_path), authkey=secret)
    stranger.send_bytes(hello)
    assert stranger.poll(10)
    with pytest.raises((EOFError, OSError)):
        stranger.recv_bytes()
    assert joined(control, tmp_path, 0)


def test_the_end_of_an_agent_is_an_event_and_orders_to_it_are_passed_over(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    agents = [joined(control, tmp_path, rank) for rank in (0, 1)]
    agents[0].close()
    assert heard(control, bool) == [Event("name", 0, None)]
    control.send("name", 0, {"order": "stop"})
    control.ping()
    assert said(agents[1]) == {"order": "ping"}
    assert not list(control.wait([], 0.2))


def test_what_was_said_before_the_end_is_heard_before_it(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    agent = joined(control, tmp_path, 0)
    for block in range(3):
        agent.send_bytes(json.dumps({"idle": block}).encode())
    agent.close()
    events = heard(control, lambda events: any(event.said is None for event in events))
    assert [event.said for event in events] == [{"idle": 0}, {"idle": 1}, {"idle": 2}, None]


def test_an_agent_that_talks_nonsense_counts_as_gone(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    agent = joined(control, tmp_path, 0)
    agent.send_bytes(b"\x80\x04nothing")
    assert heard(control, bool) == [Event("name", 0, None)]


def test_one_that_joins_twice_is_heard_on_its_newer_line_and_blocks_nobody(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    older = joined(control, tmp_path, 0)
    newer = joined(control, tmp_path, 0)
    older.send_bytes(b'{"idle": 9}')
    newer.send_bytes(b'{"idle": 1}')
    assert Event("name", 0, {"idle": 1}) in heard(control, bool)


@pytest.mark.timeout(30)
def test_one_that_speaks_while_it_is_replaced_blocks_nobody(control: Control, tmp_path: Path) -> None:
    control.invite(tmp_path, "name")
    older = joined(control, tmp_path, 0)
    newer = join(tmp_path, 0)
    assert newer is not None
    time.sleep(0.5)
    older.send_bytes(b'{"idle": 9}')
    list(control.wait([], 1))
    newer.send_bytes(b'{"idle": 1}')
    assert Event("name", 0, {"idle": 1}) in heard(control, lambda events: {"idle": 1} in [e.said for e in events])


def test_waiting_ends_when_another_source_is_readable(control: Control) -> None:
    ours, its = socket.socketpair()
    its.send(b"x")
    begun = time.monotonic()
    assert not list(control.wait([ours], 10))
    assert time.monotonic() - begun < 5
    begun = time.monotonic()
    assert not list(control.wait([], 0.2))
    assert 0.15 < time.monotonic() - begun < 5


def test_the_end_of_the_driver_closes_every_line(tmp_path: Path) -> None:
    with Control() as control:
        control.invite(tmp_path, "name")
        agent = joined(control, tmp_path, 0)
    assert agent.poll(10)
    with pytest.raises((EOFError, OSError)):
        agent.recv_bytes()
    with pytest.raises(OSError, match=r"refused|reset"):
        join(tmp_path, 1)
