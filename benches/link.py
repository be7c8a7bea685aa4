"""The line between a rank and its agent: JSON texts over a socket pair. It imports nothing heavy."""

from __future__ import annotations

import json
import socket
from typing import Any

LONGEST_TEXT = 1500


class Link:
    """The rank's end."""

    def __init__(self, end: socket.socket, supervised: bool) -> None:
        self.supervised = supervised
        """Whether a driver gives orders; without one a rank runs its rounds by itself."""
        self._end = end
        self._orders = end.makefile("rb")

    def say(self, **entries: Any) -> None:
        """Tell the agent. What was said outlives a SIGKILL. Long texts are cut."""
        cut = {name: value[:LONGEST_TEXT] if isinstance(value, str) else value for name, value in entries.items()}
        self._end.sendall(json.dumps(cut).encode() + b"\n")

    def order(self) -> dict[str, Any]:
        """Wait for the driver's next order; the agent may stop and continue this process meanwhile."""
        line = self._orders.readline()
        if not line:
            raise ConnectionError("the agent of this rank is gone")
        return dict(json.loads(line))


class Lines:
    """The agent's end: whole lines out of what has arrived."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._rest = b""

    def fileno(self) -> int:
        return self.end.fileno()

    def read(self) -> list[dict[str, Any]] | None:
        """What arrived, without waiting; None once the rank has closed its end."""
        try:
            data = self.end.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [dict(json.loads(line)) for line in lines]

    def write(self, text: bytes) -> None:
        """Hand an order on, as it came."""
        self.end.sendall(text + b"\n")
