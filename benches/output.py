"""What commands print, for machines and for people."""

from __future__ import annotations

import json
import sys

from rich.console import Console


class Terminal(Console):
    """Standard output for people."""

    def on_broken_pipe(self) -> None:
        """Leave a reader that has gone to `cli.main`; rich would end with status 1."""
        raise BrokenPipeError


def print_json(value: object) -> None:
    """One object on standard output."""
    json.dump(value, sys.stdout, indent=1, allow_nan=False)
    print()
