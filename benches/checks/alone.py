"""Run a script as by itself, then note its peak of resident memory: python alone.py FOLDER script.py ARGUMENT…

It imports nothing of ours, so that the memory is the script's own.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path


def peak_memory_mb() -> float:
    """Peak of this process's resident memory, in 2**20 bytes: VmHWM of proc(5).

    ru_maxrss would count what the launcher held before its exec.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    """Run the script to its end and write `peak<pid>` into the folder."""
    folder, script, *rest = sys.argv[1:]
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")
    (Path(folder) / f"peak{os.getpid()}").write_text(str(peak_memory_mb()))


if __name__ == "__main__":
    main()
