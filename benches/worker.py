"""What every launcher starts, once for each rank: `python -m benches.worker case.yaml --out FOLDER`.

Started by hand under any launcher it writes the same record as under `ringduel run`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and os.environ.get("PYTHONSAFEPATH") and not getattr(sys.flags, "safe_path", False):
    # Python 3.10 does not know that variable: the folder that one calls from would stand before the standard library.
    del sys.path[0]

import argparse
import gc
from pathlib import Path

from benches import agent, rankenv
from benches.control import CONTROL
from benches.link import Link

RECORD = "record.json"
"""`record.HEADER`, without that module's heavy imports."""
MISTAKE = 2
PARITY_FAILED = 4
"""Exit status of ranks that the parity gate stopped; their record says why."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line of one rank."""
    parser = argparse.ArgumentParser(prog="python -m benches.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", type=Path, help="case file, as `ringduel plan` or `run` writes it")
    parser.add_argument("--out", type=Path, required=True, help="folder of this launch; the record goes there")
    parser.add_argument("--rounds", type=int, default=3, help="blocks to time, by hand (default: %(default)s)")
    parser.add_argument("--launch", type=int, default=0, help="number of this launch (default: %(default)s)")
    parser.add_argument(
        "--gate",
        choices=["whole", "brief"],
        default="whole",
        help="brief: without gradients, where an earlier launch of this case has passed (default: %(default)s)",
    )
    parser.add_argument("--losses", type=int, default=0, help="trace the loss of this many steps first (default: none)")
    return parser.parse_args(arguments)


def main() -> int:
    """Run one rank under its agent and return its exit status."""
    options = parse()
    # A driver starts no launch that has a record.
    if (options.out / RECORD).exists() and not (options.out / CONTROL).exists():
        print(f"ringduel: --out={options.out}: holds the record of a launch; name another folder", file=sys.stderr)
        return MISTAKE
    rankenv.take_secrets()
    return agent.supervise(lambda link: _work(options, link), options.out)


def _work(options: argparse.Namespace, link: Link) -> int:
    link.say(phase="setup", node=rankenv.node())
    if link.supervised:
        _log_to(options.out / "logs" / f"rank{rankenv.rank()}.log")
    # torch's half a million objects stay anyway; to look through them again and again takes a fifth of the imports.
    # Collections come back once the model is there.
    gc.disable()
    from benches import rank

    return rank.run(options, link)


def _log_to(path: Path) -> None:
    """Send standard output and error of this process, C libraries included, to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    # A killed rank must not take its last lines along.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main())
