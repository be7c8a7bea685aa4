"""A rank without torch: it leaves what it was given in a file. `far_rank.py FOLDER WORD…`; standard library alone."""

import json
import os
import sys
from pathlib import Path

NAMES = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
rank = next(os.environ[name] for name in NAMES if name in os.environ)
said = {"words": sys.argv[2:], "folder": str(Path.cwd()), "host": os.uname().nodename, "env": dict(os.environ)}
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(said))
