"""A process of its own that runs a function of ours in any interpreter, which need not have this project installed.

As in a rank, ours is found first, so that a file of the user's cannot shadow it; last comes the folder that one calls
from, for one's own model.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launchers.supervise import CHECKOUT

START = "import sys; sys.path = [sys.argv.pop(1), *filter(None, sys.path), sys.argv.pop(1)]; "


def words(python: str | None, code: str, *arguments: str) -> list[str]:
    """The command that runs `code`, which finds the arguments in `sys.argv[1:]`; python: null is our own."""
    return [python or sys.executable, "-c", START + code, str(CHECKOUT), str(Path.cwd()), *arguments]
