"""The control plane between a driver and the agents of its ranks: JSON over authenticated connections.

It stands on `multiprocessing.connection` (a challenge with HMAC, standard library) rather than on torch's TCPStore:
agents and driver would else import torch, 3 s of CPU time a rank. Texts are JSON, so nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

CONTROL = "control.json"
"""In the folder of a launch, readable by its owner only: address, secret of the driver, and name of the launch."""
LEASE_S = 60.0
"""An agent that hears nothing of its driver for so long kills its rank: nobody is left stopped for ever."""
PING_S = 5.0
"""Between two signs of life of the driver."""
HANDSHAKE_S = 20.0
LOOPBACK = "127.0.0.1"
ACCEPT_AGAIN_S = 0.1


class Event(NamedTuple):
    """What an agent said."""

    launch: str
    rank: int
    said: dict[str, Any] | None
    """None: its connection has ended."""


class Control:
    """The driver's end: agents of all its launches connect to it. Use as a context manager.

    It listens on those addresses alone at which agents were invited.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._listeners: dict[str, Listener] = {}
        self._joined: SimpleQueue[tuple[str, int, Connection]] = SimpleQueue()
        self._wake, self._waker = os.pipe()
        self._agents: dict[tuple[str, int], Connection] = {}
        self._closed = False

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all agents, which end what they still have."""
        self._closed = True
        for listener in self._listeners.values():
            # A connection of our own ends the wait in accept, which closing alone does not.
            with contextlib.suppress(OSError), contextlib.closing(Client(listener.address)):
                pass
            listener.close()
        self._welcome()
        for connection in self._agents.values():
            connection.close()
        os.close(self._wake)

    def invite(self, out: Path, launch: str, host: str = LOOPBACK) -> None:
        """Leave in the folder of a launch what its agents need to connect; host: our address as they reach it."""
        entry = {"address": self._listening(host).address, "secret": self._secret.hex(), "launch": launch}
        handle = os.open(out / CONTROL, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            json.dump(entry, stream)

    def _listening(self, host: str) -> Listener:
        if host not in self._listeners:
            # Not the listener's own key: a peer that connects and then is silent would block all others.
            self._listeners[host] = Listener((host, 0), backlog=256)
            threading.Thread(target=self._accept, args=[self._listeners[host]], daemon=True).start()
        return self._listeners[host]

    def send(self, launch: str, rank: int, order: dict[str, Any]) -> None:
        """Give one agent an order; one that has gone is passed over."""
        connection = self._agents.get((launch, rank))
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.send_bytes(json.dumps(order).encode())

    def dismiss(self, launch: str) -> None:
        """Let go of the agents of one launch; those that are still there, on whatever machine, kill their ranks."""
        for key in [key for key in self._agents if key[0] == launch]:
            self._agents.pop(key).close()

    def ping(self) -> None:
        """Renew the lease of every agent."""
        for launch, rank in list(self._agents):
            self.send(launch, rank, {"order": "ping"})

    def wait(self, others: list[Any], timeout: float) -> Iterator[Event]:
        """Sleep until an agent speaks, one of `others` becomes readable, or the time is up; then what was said."""
        agents = {connection: key for key, connection in self._agents.items()}
        ready = wait([self._wake, *others, *agents], timeout)
        for one in ready:
            if one == self._wake:
                os.read(self._wake, 4096)
                self._welcome()
            elif isinstance(one, Connection):
                yield self._receive(one, *agents[one])

    def _receive(self, connection: Connection, launch: str, rank: int) -> Event:
        try:
            return Event(launch, rank, dict(json.loads(connection.recv_bytes(1 << 20))))
        except (EOFError, OSError, ValueError):
            # It may have been followed by another one of the same rank.
            if self._agents.get((launch, rank)) is connection:
                del self._agents[launch, rank]
            connection.close()
            return Event(launch, rank, None)

    def _welcome(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                launch, rank, connection = self._joined.get_nowait()
                self._agents[launch, rank] = connection

    def _accept(self, listener: Listener) -> None:
        while not self._closed:
            try:
                connection = listener.accept()
            except OSError:
                # Too many files, or a peer that has gone already; when the listener is closed, `_closed` is set.
                time.sleep(ACCEPT_AGAIN_S)
                continue
            threading.Thread(target=self._shake_hands, args=[connection], daemon=True).start()

    def _shake_hands(self, connection: Connection) -> None:
        """Let in who knows the secret, and close on everybody else."""
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            if not connection.poll(HANDSHAKE_S):
                raise TimeoutError
            hello = json.loads(connection.recv_bytes(4096))
            self._joined.put((str(hello["launch"]), int(hello["rank"]), connection))
            os.write(self._waker, b"\0")
        except (AuthenticationError, EOFError, OSError, ValueError, KeyError, TypeError):
            connection.close()


def join(out: Path, rank: int) -> Connection | None:
    """Connect an agent to the driver of its launch; None where it has none. Raises OSError, AuthenticationError."""
    path = out / CONTROL
    if not path.exists():
        return None
    entry = json.loads(path.read_text())
    host, port = entry["address"]
    connection: Connection = Client((host, port), authkey=bytes.fromhex(entry["secret"]))
    connection.send_bytes(json.dumps({"launch": entry["launch"], "rank": rank}).encode())
    return connection
