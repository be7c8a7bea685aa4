"""Two ranks on two machines, with words, a variable and a folder that a shell would take apart, and what they got."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benches import rankenv
from launchers.spec import LaunchSpec

WORDS = ("a b", "it's", '"$(touch x)"', "`id`", "new\nline", "", "a;b&c|d", "\\", "*", "~", "é", "!x", "#y")
VALUE = 'it\'s "$(id)" `id` a;b\\'


def spec(parent: Path) -> LaunchSpec:
    """Of the two ranks, in a folder of `parent`."""
    folder = parent / "it's $(here)"
    folder.mkdir(parents=True)
    return LaunchSpec(
        python=sys.executable,
        args=(str(Path(__file__).with_name("far_rank.py")), str(folder), *WORDS),
        nodes=2,
        ranks_per_node=1,
        cwd=str(folder),
        env={"HOSTILE": VALUE, "OMP_NUM_THREADS": "1"},
        yield_when_idle=True,
        as_root=os.geteuid() == 0,
    )


def check(wanted: LaunchSpec, hosts: Sequence[str]) -> None:
    """Both came, in the order of the hosts, and nothing was changed on the way."""
    folder = Path(wanted.cwd)
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.json", "rank1.json"]
    for rank, host in enumerate(hosts):
        said = json.loads((folder / f"rank{rank}.json").read_text())
        assert said["words"] == list(WORDS)
        assert said["folder"] == str(folder)
        assert said["host"] == host
        assert (said["env"]["HOSTILE"], said["env"]["OMP_NUM_THREADS"]) == (VALUE, "1")
        assert (rankenv.rank(said["env"]), rankenv.local_rank(said["env"])) == (rank, 0)
