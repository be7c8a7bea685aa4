"""A rank of `test_migrating`: runs the blocks of one direction in order and writes what each left.

`migrating_rank.py BLOCKS.json FOLDER`: BLOCKS is a list of [name, code]; what the first two make stays for all.
"""

import json
import pathlib
import sys
from typing import Any

import torch

blocks, folder = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
shared: dict[str, Any] = {}
found = {}
for number, (name, code) in enumerate(blocks):
    # Two blocks: what all share, and the start, after which a rank knows its number.
    print(name, flush=True)
    scope = shared if number < 2 else dict(shared)
    scope |= {"path": str(folder / f"trace{shared.get('rank', 0)}.json")}
    if number >= 2:
        # So that what a block draws does not hang on the blocks before it.
        torch.manual_seed(7)
    exec(compile(code, name, "exec"), scope)
    if "result" in scope:
        found[name] = scope.pop("result")
torch.save(found, folder / f"rank{shared['rank']}.pt")
if "dist" in shared:
    shared["dist"].destroy_process_group()
else:
    shared["hvd"].shutdown()
