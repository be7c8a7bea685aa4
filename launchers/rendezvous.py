"""The rendezvous of Horovod's gloo controller, where horovodrun does not start the ranks: it runs a command and serves.

Standard library alone: `python -S -I …/rendezvous.py HOST NODES RANKS_PER_NODE WORD…`. HOST: this machine, as the ranks
reach it. The ranks get the address by the environment; the exit status is the command's. Follows Horovod 0.28.1
(horovod/runner/http/http_server.py): a store of bytes under /scope/key, and a scope is emptied when all of its ranks
have deleted their keys, so that Horovod can be started again in the same processes.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType


class Store(ThreadingHTTPServer):
    """Keys by scope."""

    daemon_threads = True
    # Every rank connects at once.
    request_queue_size = 1024

    def __init__(self, nodes: int, ranks_per_node: int) -> None:
        super().__init__(("", 0), Handler)
        self.lock = threading.Lock()
        self.scopes: dict[str, dict[str, bytes]] = {}
        self.done: dict[str, set[str]] = {}
        self.sizes = {"global": nodes * ranks_per_node, "local": ranks_per_node, "cross": nodes}

    def delete(self, scope: str, key: str) -> None:
        """A rank is done with a scope."""
        with self.lock:
            size = self.sizes.get(scope.partition("_")[0])
            if size is None:
                self.scopes.get(scope, {}).pop(key, None)
                return
            done = self.done.setdefault(scope, set())
            done.add(key)
            if len(done) == size:
                self.scopes.pop(scope, None)
                self.done.pop(scope)


class Handler(BaseHTTPRequestHandler):
    """GET, PUT and DELETE of /scope/key."""

    server: Store
    timeout = 30

    def do_GET(self) -> None:
        scope, key = self._names()
        with self.server.lock:
            value = self.server.scopes.get(scope, {}).get(key)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        scope, key = self._names()
        value = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.scopes.setdefault(scope, {})[key] = value
        self._answer(200)

    def do_DELETE(self) -> None:
        self.server.delete(*self._names())
        self._answer(200)

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""

    def _names(self) -> tuple[str, str]:
        _, scope, key = self.path.split("/", 2)
        return scope, key

    def _answer(self, status: int, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)


def main(arguments: list[str]) -> int:
    """Serve for as long as the command runs; returns its status (128 + n where signal n ended it)."""
    host, nodes, ranks_per_node, *words = arguments
    address = socket.gethostbyname(host)
    if int(nodes) > 1 and ipaddress.ip_address(address).is_loopback:
        print(
            f"{host}: resolves to {address}, at which no other node reaches it; correct its /etc/hosts", file=sys.stderr
        )
        return 2
    with Store(int(nodes), int(ranks_per_node)) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        place = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.server_address[1]),
        }
        code = _run(words, {**os.environ, **place})
        store.shutdown()
    return code if code >= 0 else 128 - code


def _run(words: list[str], env: dict[str, str]) -> int:
    process = subprocess.Popen(words, env=env)

    def forward(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
