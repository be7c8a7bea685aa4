"""Ranks on virtual nodes as a study has them: every cell, emulated, on two nodes; the same as hosts. Needs root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import Silent, make_case, open_cases
from workload_cases import made, model

from benches import profile as profiling
from benches import record
from benches.control import CONTROL
from benches.driver import Driver
from benches.heat import Entry
from benches.spec import Case, plain
from launchers.processes import members
from launchers.supervise import CHECKOUT, StopFlag
from launchers.tools import Tools
from launchers.virtual import cluster as virtual
from launchers.virtual.plan import Link

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.horovod,
    pytest.mark.timeout(400),
]
CELLS = [("ddp", "gloo"), ("ddp", "mpi"), ("horovod", "gloo"), ("horovod", "mpi")]


@pytest.fixture
def emulated(tmp_path: Path) -> list[str]:
    """Words for a small model."""
    path = tmp_path / "small.yaml"
    path.write_text(profiling.text_of(made()))
    return [f"model.kwargs.profile={path}", "model.kwargs.step_s=0.05"]


@pytest.fixture
def cases(emulated: list[str]) -> list[Case]:
    spec = plain(model("emulated", *emulated))
    cluster = {"name": "virtual", "nodes": 2, "link_gbps": 0.5, "mpi_yield_when_idle": True}
    return [make_case(*cell, 2, model=spec, cluster=cluster) for cell in CELLS]


def test_every_cell_duels_on_two_nodes(
    cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> None:
    folder, turns = open_cases(cases, tmp_path / "results", monkeypatch, rounds=2)
    before = virtual._folders()
    addresses = []
    hear = Entry.hear

    def heard(entry: Entry, event: object) -> None:
        if (entry.out / CONTROL).exists():
            addresses.append(json.loads((entry.out / CONTROL).read_text())["address"][0])
        hear(entry, event)  # type: ignore[arg-type]

    monkeypatch.setattr(Entry, "hear", heard)
    with Driver(folder, Tools(), Silent(), StopFlag()) as driver:
        headers = driver.launch(turns)
        (up,) = [one for one in virtual._folders() if one not in before]
    assert [(header.status, header.reason) for header in headers] == [("ok", None)] * len(cases)
    for header in headers:
        ranks, site = header.provenance["ranks"], header.provenance["site"]
        assert [rank["host"] for rank in ranks] == [f"{up.name}-n0", f"{up.name}-n1"]
        assert (site["kind"], site["link_gbps"], site["latency_ms"]) == ("virtual", [0.5, 0.5], [None, None])
        assert all(0 < carried < 0.5 for carried in site["carried_gbps"])
        assert [len(rank["lateness_s"]) for rank in ranks] == [2 * header.case.block_steps] * 2
        assert all(block.parked_s > 0 for block in header.blocks)
    assert len(set(addresses)) == 1
    assert addresses[0].startswith("198.1")
    assert virtual._folders() == before
    assert not any(members(token) for token in tokens)


HOSTS = ["model=emulated", "device=cpu", "block_steps=2", "limit_s=120", "cluster=hosts", "cluster.nic=eth0"]
STUDY = ["study.launches=1", "study.rounds=1", "study.control=false", "study.confirm=false"]
CONTESTANTS = [f"study.contestants.{engine}.transport=[gloo,mpi]" for engine in ("ddp", "horovod")]


def test_every_cell_reaches_hosts_from_the_first_of_them(emulated: list[str], tmp_path: Path) -> None:
    """As one works on a cluster; a program that enters the other node stands in for ssh."""
    results = tmp_path / "results"
    with virtual.virtual_cluster("hosts", 2, Link()) as cluster:
        names, addresses = zip(*((node.name, node.address) for node in cluster.plan.nodes), strict=True)
        words = [*HOSTS, *STUDY, *CONTESTANTS, *emulated, f"results={results}"]
        words.append(f"cluster.hosts=[{','.join(f'{address}:1' for address in addresses)}]")
        path = f"{Path(cluster.ssh).parent}:{os.environ['PATH']}"
        start = [cluster.enter, names[0], "env", f"PATH={path}", sys.executable, "-m", "benches", "run", *words]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_", "PMI"))}
        done = subprocess.run(start, env=env, cwd=CHECKOUT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    found = [record.read(path.parent) for path in (results / "study" / "launches").glob("*/0/record.json")]
    assert {header.case.cell for header in found} == {"/".join(cell) for cell in CELLS}
    for header in found:
        assert [rank["host"] for rank in header.provenance["ranks"]] == list(names)
        site = header.provenance["site"]
        assert [(one["host"], one["name"]) for one in site["hosts"]] == list(zip(addresses, names, strict=True))
