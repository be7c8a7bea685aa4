"""One node's part in the check of the links: it sends to a peer and counts what comes in, between two moments.

Standard library alone: `python -S -I …/traffic.py NUMBER OWN PEER PORT START SECONDS`, START on the monotonic clock,
which all nodes of one machine share. Prints one line of JSON: the node's number and the bytes of payload per second.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time

CHUNK = 1 << 20
WARM_UP_S = 0.4
"""Until TCP has found the rate, and the bucket is empty."""


def main(words: list[str]) -> None:
    """Send and receive until the end, then say what came."""
    number, own, peer, port, start, seconds = words
    first = float(start) + WARM_UP_S
    end = first + float(seconds)
    listener = socket.create_server((own, int(port)))
    threading.Thread(target=_send, args=(peer, int(port), float(start), end), daemon=True).start()
    listener.settimeout(max(end - time.monotonic(), 0.01))
    with contextlib.closing(listener.accept()[0]) as link:
        print(json.dumps({"node": int(number), "bytes_per_s": _count(link, first, end)}), flush=True)


def _send(peer: str, port: int, start: float, end: float) -> None:
    link = _connect(peer, port, end)
    time.sleep(max(start - time.monotonic(), 0))
    chunk = bytes(CHUNK)
    # The peer closes its end when the time is up.
    with contextlib.suppress(OSError):
        while True:
            link.sendall(chunk)


def _connect(peer: str, port: int, end: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((peer, port), timeout=end - time.monotonic())
        except ConnectionRefusedError:
            time.sleep(0.02)  # it does not listen yet


def _count(link: socket.socket, first: float, end: float) -> float:
    """Bytes per second that arrived between `first` and `end`."""
    buffer, total, since, now = bytearray(CHUNK), 0, 0.0, 0.0
    while now < end:
        count = link.recv_into(buffer)
        now = time.monotonic()
        if count == 0:
            raise SystemExit("the peer has gone")
        if since:
            total += count
        elif now >= first:
            since = now
    return total / (now - since)


if __name__ == "__main__":
    main(sys.argv[1:])
