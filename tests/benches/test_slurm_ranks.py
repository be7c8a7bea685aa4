"""Ranks in a real Slurm of two nodes: a study by sbatch, one that is cancelled and resumes, srun by hand.

Needs root and Debian's packages slurm-wlm, munge, libpmix2 and libpmix-dev.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import far
import pytest
from running import make_case
from slurm_cluster import CORES, Slurm, missing, slurm

from benches import record
from benches.heat import PROGRESS
from benches.spec import Case, dump, plain
from launchers import slurm as steps
from launchers.kin import die_with_parent
from launchers.slurm import SlurmNodes, SlurmSpec
from launchers.spec import Command, LaunchSpec
from launchers.supervise import CHECKOUT
from launchers.tools import Tools

WHY = missing()
pytestmark = [
    pytest.mark.skipif(WHY is not None, reason=str(WHY)),
    pytest.mark.horovod,
    pytest.mark.timeout(400),
]
STUDY = ["model=mlp", "device=cpu", "cluster=slurm", "limit_s=120", "study.control=false", "study.confirm=false"]
DDP, HOROVOD = "study.contestants.ddp={engine: ddp}", "study.contestants.horovod={engine: horovod}"
MPI = "study.contestants.mpi={engine: horovod, transport: mpi}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as up:
        yield up


@pytest.fixture
def pmix(cluster: Slurm) -> None:
    if cluster.run("srun", "--mpi=pmix", "true").returncode != 0:
        pytest.skip("this Slurm has no pmix; Debian's packages are libpmix2 and libpmix-dev")


def headers(results: Path) -> dict[str, record.Header]:
    """Records by cell and launch."""
    found = [record.read(path.parent) for path in results.glob("study/launches/*/*/record.json")]
    return {f"{header.case.cell} {header.launch}": header for header in found}


def test_a_study_by_sbatch(cluster: Slurm, pmix: None, tmp_path: Path) -> None:
    words = [*STUDY, DDP, HOROVOD, MPI, "study.launches=1", "study.rounds=2", "block_steps=5", f"results={tmp_path}"]
    done = cluster.ringduel("run", "--json", *words)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [one["name"] for one in said["contestants"]] == ["ddp", "horovod", "mpi"]
    found = headers(tmp_path)
    assert {name: header.status for name, header in found.items()} == dict.fromkeys(
        ("ddp/gloo 0", "horovod/gloo 0", "horovod/mpi 0"), "ok"
    )
    for header in found.values():
        assert [rank["host"] for rank in header.provenance["ranks"]] == list(cluster.nodes)
        assert all(block.parked_s > 0 for block in header.blocks), "they take turns, as steps of one job"
        site = header.provenance["site"]
        assert (site["kind"], site["partition"]) == ("slurm", "debug")
        assert [one["host"] for one in site["hosts"]] == list(cluster.nodes)
        assert "srun --nodes=2 " in header.command
    assert len({header.provenance["site"]["job"] for header in found.values()}) == 1
    again = cluster.ringduel("run", *words)
    assert again.returncode == 0, again.stderr
    assert "finished before" in again.stderr, "nothing is left to submit"


def test_a_study_that_is_cancelled_resumes_in_another_allocation(cluster: Slurm, tmp_path: Path) -> None:
    words = [*STUDY, DDP, HOROVOD, "study.launches=2", "study.rounds=4", "block_steps=100", f"results={tmp_path}"]
    start = [sys.executable, "-m", "benches", "run", *words]
    with subprocess.Popen(
        start, env=cluster.env, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent
    ) as run:
        try:
            second = wait_for_second_launch(run, tmp_path)
            job = (tmp_path / "study.slurm" / "job").read_text()
            assert cluster.run("scancel", job).returncode == 0
            _, said = run.communicate(timeout=100)
        finally:
            run.kill()
    assert run.returncode == 130, said
    assert f"job {job}: CANCELLED; the same command goes on with what is missing" in said
    statuses = {name: header.status for name, header in headers(tmp_path).items()}
    assert statuses == {
        **dict.fromkeys(("ddp/gloo 0", "horovod/gloo 0"), "ok"),
        **dict.fromkeys(("ddp/gloo 1", "horovod/gloo 1"), "interrupted"),
    }
    first = {path: path.read_bytes() for path in tmp_path.glob("study/launches/*/0/record.json")}
    done = cluster.ringduel("run", *words)
    assert done.returncode == 0, done.stderr
    assert "goes on with the 2 launches that are missing" in done.stderr
    found = headers(tmp_path)
    assert {name: header.status for name, header in found.items()} == dict.fromkeys(statuses, "ok")
    assert {name: header.provenance["site"]["job"] == job for name, header in found.items()} == {
        name: name.endswith(" 0") for name in found
    }
    assert first == {path: path.read_bytes() for path in first}, "what was done stands"
    assert len(list(tmp_path.glob("study/aside/*/1.0/record.json"))) == len(second)


def wait_for_second_launch(run: subprocess.Popen[str], results: Path) -> list[Path]:
    """Until all launches of the second heat time their steps; their folders."""
    deadline = time.monotonic() + 150
    while True:
        found = list(results.glob(f"study/launches/*/1/{PROGRESS}"))
        if len(found) == 2 and any(json.loads(path.read_text())["phase"] == "timing" for path in found):
            return [path.parent for path in found]
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cluster.slurm.partition=none"], "cluster.slurm.partition=none: unknown; choices: debug"),
        (["cluster.slurm.constraint=a100"], "cluster=slurm: sbatch refuses: "),
    ],
)
def test_what_slurm_cannot_give_is_one_line(cluster: Slurm, words: list[str], line: str, tmp_path: Path) -> None:
    done = cluster.ringduel("run", *STUDY, *words, f"results={tmp_path}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"ringduel: {line}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_a_fault_of_the_nodes_is_found_on_them(cluster: Slurm, tmp_path: Path) -> None:
    """The job's one line is this command's, and so is its status."""
    done = cluster.ringduel("run", *STUDY, DDP, "python=/nowhere/python", f"results={tmp_path}")
    assert done.returncode == 2
    # Whoever follows the job may see its next state only after what it wrote.
    *_, last = [line for line in done.stderr.splitlines() if not re.fullmatch(r"job \d+: [A-Z_]+", line)]
    assert last.startswith("ringduel: cluster=slurm: /nowhere/python does not run on each node: "), done.stderr
    assert not (tmp_path / "study").exists()


STEPS: dict[str, Callable[[LaunchSpec, SlurmNodes], Command]] = {
    "torchrun": steps.torchrun_step,
    "horovod": steps.horovod_gloo_step,
    "pmix": lambda spec, on: steps.mpi_step(spec, on, "openmpi5"),
    "mpirun": lambda spec, on: steps.mpirun(spec, on, Tools().mpi(sys.executable)),
}


def test_words_and_variables_arrive_unchanged(cluster: Slurm, pmix: None, tmp_path: Path) -> None:
    """By each kind of step, one after the other in one allocation."""
    on = SlurmNodes(cluster.nodes, CORES, "000000ff00", cluster.nodes[0], SlurmSpec(), "eth0")
    specs = {name: far.spec(tmp_path / name) for name in STEPS}
    lines = [f"echo {name}; {STEPS[name](specs[name], on).text()} || exit" for name in STEPS]
    (tmp_path / "job.sh").write_text("\n".join(["#!/bin/sh", "exec 2>&1", *lines, ""]))
    words = ["--nodes=2", "--exclusive", "--wait", f"--output={tmp_path / 'log'}", str(tmp_path / "job.sh")]
    done = cluster.run("sbatch", *words, limit_s=120)
    assert done.returncode == 0, (tmp_path / "log").read_text()
    for one in specs.values():
        far.check(one, cluster.nodes)


def by_hand(case: Case, folder: Path) -> list[str]:
    """Words of one rank, as one types them."""
    path = folder / f"{case.id}.yaml"
    path.write_text(dump(case))
    return ["-m", "benches.worker", str(path), "--out", str(folder / case.id), "--rounds", "1"]


def test_srun_by_hand_writes_the_same_record(cluster: Slurm, pmix: None, tmp_path: Path) -> None:
    cases = [make_case(*cell, 1, cluster={"nodes": 2}) for cell in (("ddp", "gloo"), ("horovod", "mpi"))]
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'tests'}"}
    step = ["srun", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    agent = f"--nnodes=2 --nproc-per-node=1 --rdzv-backend=static --rdzv-endpoint={cluster.nodes[0]}:29400"
    torchrun = f'exec "$0" -m torch.distributed.run --node-rank=$SLURM_NODEID {agent} "$@"'
    starts = [[*step, "sh", "-c", torchrun, sys.executable], [*step, "--mpi=pmix", sys.executable]]
    for case, start in zip(cases, starts, strict=True):
        done = cluster.run("env", *(f"{k}={v}" for k, v in env.items()), *start, *by_hand(case, tmp_path), limit_s=120)
        assert done.returncode == 0, done.stderr
        header = record.read(tmp_path / case.id)
        assert (header.status, header.world_size, header.case) == ("ok", 2, case)
        assert header.parity is not None
        assert header.parity.passed
        assert [rank["host"] for rank in header.provenance["ranks"]] == list(cluster.nodes)
        assert set(plain(header)) == set(record.Header.__struct_fields__)
        steps = record.read_samples(tmp_path / case.id).to_pandas().query("kind == 'step'")
        assert len(steps) == 2 * case.block_steps
