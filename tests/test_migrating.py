"""docs/migrating.md: its blocks run on two real ranks, both directions end alike, and its numbers are counted."""

from __future__ import annotations

import difflib
import json
import re
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launchers.spec import Command
from launchers.supervise import run
from launchers.tools import Tools

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "migrating.md"
RANK = Path(__file__).parent / "migrating_rank.py"
RANKS = 2
LIMIT_S = 120
FENCE = re.compile(r"^## (?P<section>.+?)$|^```python (?P<kind>[a-z ]+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    section: str
    kind: str
    """both, horovod, ddp or horovod only."""
    code: str


def read_blocks() -> list[Block]:
    section, found = "", []
    for match in FENCE.finditer(PAGE.read_text(encoding="utf-8")):
        section = match["section"] or section
        if match["code"] is not None:
            found.append(Block(section, match["kind"], match["code"]))
    return found


BLOCKS = read_blocks()
PAIRS = list(dict.fromkeys(block.section for block in BLOCKS if block.kind == "ddp"))
LOSSY = ("Compression",)
"""Sections whose two sides round otherwise."""


def of(engine: str) -> list[tuple[str, str]]:
    """Names and code of one direction, in order."""
    kinds = ("both", engine, f"{engine} only")
    return [
        (f"{block.section}{' only' if block.kind.endswith('only') else ''} {number}", block.code)
        for number, block in enumerate(BLOCKS)
        if block.kind in kinds
    ]


def launch(engine: str, words: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """What each rank found, by name of its block."""
    import torch

    (folder / "blocks.json").write_text(json.dumps(of(engine)))
    env = {"OMP_NUM_THREADS": "1", "HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_TIMELINE": "DYNAMIC"}
    command = Command((*words, sys.executable, str(RANK), str(folder / "blocks.json"), str(folder)), env, str(folder))
    outcome = run(command, log=folder / "log", limit_s=LIMIT_S, token=uuid.uuid4().hex)
    assert outcome.status == "ok", (folder / "log").read_text()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--no-python"]
    return launch("ddp", [*words, f"--nproc-per-node={RANKS}"], tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="module")
def horovod(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    words = [*Tools().horovodrun(sys.executable), "--gloo", "--disable-cache", "-np", str(RANKS)]
    return launch("horovod", words, tmp_path_factory.mktemp("horovod"))


def section(found: dict[str, Any], name: str) -> Any:
    return next(value for key, value in found.items() if re.fullmatch(rf"{re.escape(name)} \d+", key))


@pytest.mark.horovod
@pytest.mark.parametrize("name", [name for name in PAIRS if name != "Profiling"])
def test_both_directions_end_alike(name: str, ddp: list[dict[str, Any]], horovod: list[dict[str, Any]]) -> None:
    import torch

    tolerance = {"rtol": 0.0, "atol": 1e-3 if name in LOSSY else 1e-6}
    for rank in range(RANKS):
        torch.testing.assert_close(section(horovod[rank], name), section(ddp[rank], name), **tolerance)


@pytest.mark.horovod
def test_ranks_end_alike_but_where_the_page_says_otherwise(
    ddp: list[dict[str, Any]], horovod: list[dict[str, Any]]
) -> None:
    import torch

    own = ("Start", "Process sets", "Buffers")
    for found in (ddp, horovod):
        for name in PAIRS:
            if name not in (*own, "Profiling"):
                torch.testing.assert_close(section(found[0], name), section(found[1], name), rtol=0.0, atol=0.0)
        assert not torch.equal(section(found[0], "Buffers"), section(found[1], "Buffers"))


@pytest.mark.horovod
def test_what_the_page_says_of_horovod_alone_holds(horovod: list[dict[str, Any]]) -> None:
    alone = {name: value for name, value in horovod[0].items() if " only " in name}
    assert len(alone) == sum(block.kind == "horovod only" for block in BLOCKS)
    assert all(value is True for value in alone.values()), alone


@pytest.mark.proof
@pytest.mark.horovod
def test_each_profile_shows_the_reductions(
    ddp: list[dict[str, Any]], horovod: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp()
    assert "gloo:all_reduce" in (base / "ddp0" / "trace0.json").read_text()
    assert "GLOO_ALLREDUCE" in (base / "horovod0" / "trace0.json").read_text()


@pytest.mark.parametrize("name", PAIRS)
def test_the_lines_that_change_are_counted(name: str) -> None:
    before, after = (
        next(block.code.splitlines() for block in BLOCKS if (block.section, block.kind) == (name, kind))
        for kind in ("horovod", "ddp")
    )
    changed = [line[0] for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| [{name[0].lower()}{name[1:]}]("))
    assert f"| −{changed.count('-')} +{changed.count('+')} |" in row


def test_every_section_stands_in_the_table_and_back() -> None:
    text = PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)[2:]
    listed = re.findall(r"^\| \[(.+?)\]\(#(.+?)\)", text, re.MULTILINE)
    assert [anchor for _, anchor in listed] == [title.lower().replace(" ", "-") for title in titles]
