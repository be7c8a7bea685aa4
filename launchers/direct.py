"""No launcher: one process, started by itself."""

from __future__ import annotations

from launchers.spec import Command, LaunchSpec


def command(spec: LaunchSpec) -> Command:
    """The interpreter alone."""
    return Command(spec.words, spec.env, spec.cwd)
