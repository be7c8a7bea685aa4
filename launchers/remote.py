"""Commands on other machines over ssh, whatever characters their words hold. Pure text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benches.errors import UserError

CHECKOUT = Path(__file__).resolve().parent.parent
CONNECT_S = 10
"""For a login; a host that takes longer counts as unreachable."""


@dataclass(frozen=True)
class Ssh:
    """How to log in, where the user's ~/.ssh/config does not say it."""

    program: str = "ssh"
    """One that takes ssh's arguments."""
    port: int | None = None
    identity_file: str | None = None
    """Path of a private key."""

    def __post_init__(self) -> None:
        # mpirun's daemons get these options as one text, which is split at spaces.
        if self.identity_file and shlex.quote(self.identity_file) != self.identity_file:
            raise UserError(
                f"cluster.identity_file={self.identity_file!r}: mpirun and horovodrun cannot pass such a path; take "
                "one without spaces and quotes, or set IdentityFile in ~/.ssh/config"
            )

    @property
    def options(self) -> tuple[str, ...]:
        """It never asks: a launch has no terminal."""
        port = ("-p", str(self.port)) if self.port else ()
        key = ("-i", self.identity_file) if self.identity_file else ()
        return ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", *port, *key)

    def words(self, host: str, text: str) -> tuple[str, ...]:
        """Run `text` in a POSIX shell on the host, whatever the login shell there is."""
        return (self.program, *self.options, host, f"exec sh -c {shlex.quote(text)}")


def guarded(words: Sequence[str], env: Mapping[str, str], folder: str, token: str) -> str:
    """Shell text that runs the words under a guard of their own, which ends them when ssh's connection does.

    The first word is the interpreter that runs the guard too; the checkout lies at the same path on every host.
    """
    guard = (words[0], "-S", "-E", "-m", "launchers.guard", "3", token, folder, *words)
    variables = [f"{name}={value}" for name, value in sorted(env.items())]
    # Descriptor 3 is the connection: its end is what the guard takes for the driver's death.
    return f"cd {shlex.quote(str(CHECKOUT))} && exec {shlex.join(['env', *variables, *guard])} 3<&0 </dev/null"


@dataclass(frozen=True)
class SshNodes:
    """Nodes that are machines reached over ssh; see `launchers.nodes.Nodes`."""

    hosts: tuple[str, ...]
    token: str
    """Of this launch, at the far ends: a hexadecimal text, another for each launch."""
    ssh: Ssh = field(default_factory=Ssh)
    nic: str | None = None
    """Network device, by the same name on each; null: what each library picks."""
    mca: tuple[tuple[str, str], ...] = ()
    first: tuple[str, ...] = ()

    def on(self, node: int, words: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[str, ...]:
        """Words that run `words` on that node in `folder`, with these variables over those of a login there."""
        # Hosts may share a process table, as containers do: each guard ends what is its own host's alone.
        return self.ssh.words(self.hosts[node], guarded(words, env, folder, f"{self.token}-{node}"))
