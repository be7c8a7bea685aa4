"""`cluster=kubernetes`: what `plan` writes, what `run` gives to kubectl, and what the launcher pod reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from composing import resolved, study

from benches import cli, clusters, pods
from benches.config import Resolved
from benches.errors import UserError
from launchers import kubernetes
from launchers.hostcheck import Answer
from launchers.remote import SshNodes

IMAGE = "cluster.kubernetes.image=registry.example/ringduel:1"
CLAIM = "cluster.kubernetes.results_claim=results"
WORDS = ["cluster=kubernetes", IMAGE, CLAIM, "cluster.nodes=2", "model=mlp", "device=cpu"]


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No pod, until the test writes this hostfile."""
    monkeypatch.setattr(kubernetes, "HOSTFILE", tmp_path / "hostfile")
    return tmp_path / "hostfile"


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that notes its words and the manifest that it is given; the folder that it writes to."""
    there = tmp_path / "bin"
    there.mkdir()
    program = there / "kubectl"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{there}/words\ncat "$3" >{there}/manifest\necho "mpijob made"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{there}:/usr/bin:/bin")
    return there


def mpi_job(found: Resolved, words: list[str]) -> Any:
    return yaml.safe_load(pods.manifests(found, words, None)[pods.MPI_JOB])


def test_run_hands_the_manifest_to_kubectl(kubectl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "it's $(a) folder"
    words = [*WORDS, "cluster.kubernetes.namespace=ml", f"results={json.dumps(str(results))}"]
    assert cli.main(["run", *words]) == cli.DONE
    path = results / "study.kubernetes" / pods.MPI_JOB
    assert (kubectl / "words").read_text().splitlines() == ["apply", "-f", str(path)]
    assert (kubectl / "manifest").read_text() == path.read_text()
    job = yaml.safe_load(path.read_text())
    assert (job["kind"], job["metadata"]) == ("MPIJob", {"name": "study", "namespace": "ml"})
    (launcher,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert launcher["command"] == ["ringduel", "run", *words[:-1], "results=/results/runs"]
    said = capsys.readouterr().out
    assert "mpijob made" in said
    assert "kubectl logs -f -n ml job/study-launcher" in said
    assert not (results / "study").exists(), "the study's folder is the pods'"


def test_without_kubectl_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["run", *WORDS, f"results={tmp_path}/runs"]) == cli.MISTAKE
    path = tmp_path / "runs/study.kubernetes" / pods.MPI_JOB
    line = (
        f"ringduel: cluster=kubernetes: no kubectl on the PATH; install it, or where it is: kubectl apply -f {path}\n"
    )
    assert capsys.readouterr().err == line
    assert path.exists()


def test_what_kubectl_refuses_is_said_in_one_line(
    kubectl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kubectl / "kubectl").write_text("#!/bin/sh\necho 'no matches for kind MPIJob' >&2\nexit 1\n")
    assert cli.main(["run", *WORDS, f"results={tmp_path}/runs"]) == cli.MISTAKE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("no matches for kind MPIJob")


def test_plan_writes_the_manifests_and_starts_nothing(
    kubectl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--json", *WORDS, "engine=ddp", f"results={tmp_path}/runs"]) == cli.DONE
    found = json.loads(capsys.readouterr().out)
    (case,) = found["cases"]
    assert [Path(path).name for path in found["manifests"]] == [pods.MPI_JOB, f"trainjob-{case['case']}.yaml"]
    assert "study-worker-0" in case["command"]
    assert "study-worker-1" in case["command"]
    trainer = yaml.safe_load(Path(found["manifests"][1]).read_text())["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 1)
    assert f"/results/runs/study.plan/launches/{case['case']}/0" in trainer["command"]
    assert {one["name"]: one.get("value") for one in trainer["env"]}["PYTHONPATH"] == pods.FOLDER
    assert not (kubectl / "words").exists()


def test_one_set_of_pods_is_as_large_as_the_largest_case() -> None:
    words = [
        *WORDS[:3],
        "model=mlp",
        "device=cpu",
        "study.axes.cluster.nodes=[1,4]",
        "study.axes.cluster.ranks_per_node=[1,2]",
    ]
    spec = mpi_job(resolved(*words), words)["spec"]
    assert (spec["slotsPerWorker"], spec["mpiReplicaSpecs"]["Worker"]["replicas"]) == (2, 4)


def test_a_study_is_composed_for_the_pods_and_not_for_this_machine() -> None:
    words = [*WORDS[:-1], "cluster.ranks_per_node=auto", "cluster.kubernetes.gpus=8", "cluster.kubernetes.cpus=16"]
    (case, *_) = (one.case for one in study(*words, cores=1).contestants)
    assert (case.device, case.transport, case.cluster.ranks_per_node) == ("cuda", "nccl", 8)
    with pytest.raises(UserError, match=r"32 cores, and 16 may be used"):
        study(*WORDS, "cluster.kubernetes.cpus=16", "cluster.ranks_per_node=32", cores=64)
    with pytest.raises(UserError, match=r"^device=cuda: cluster\.kubernetes\.gpus=0 asks for no GPU"):
        study(*WORDS[:-1], "device=cuda", gpus=4)


def test_cases_do_not_depend_on_what_is_asked_of_kubernetes() -> None:
    one, other = study(*WORDS), study(*WORDS, "cluster.kubernetes.memory=4Gi", "cluster.kubernetes.rdma=[rdma/hca:1]")
    assert [c.case.id for c in one.contestants] == [c.case.id for c in other.contestants]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cluster=kubernetes", CLAIM], r"^cluster\.kubernetes\.image=null: a manifest needs an image"),
        (["cluster=kubernetes", IMAGE], r"^cluster\.kubernetes\.results_claim=null: the pods need one folder"),
        ([*WORDS, "cluster.kubernetes.cpus=many"], r"^cluster\.kubernetes\.cpus=many: takes such as 16 or 64Gi"),
        ([*WORDS, "cluster.kubernetes.imag=x"], r"^cluster\.kubernetes\.imag=x: unknown key; nearest: cluster\.kub"),
        ([*WORDS, "cluster.hosts=[a:1]"], r"^cluster\.hosts=\[a:1\]: cluster=kubernetes has pods as nodes"),
        (["cluster=local", IMAGE], r"^cluster\.kubernetes=\{image: .*\}: cluster=local asks nothing of Kubernetes"),
        ([*WORDS, "study.axes.cluster.kubernetes.gpus=[0,1]"], r"belongs to the study as a whole"),
        (["study.axes.cluster=[kubernetes,local]"], r"^cluster=kubernetes: one set of pods holds a whole study"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        pods.manifests(resolved(*words), words, None)
    assert "\n" not in str(error.value)


def test_inside_the_pods_ranks_go_by_the_hostfile(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(*WORDS)
    case = found.contestants[0].case
    with pytest.raises(UserError, match=r"^cluster=kubernetes: .*/hostfile: No such file"):
        clusters.ssh_nodes(case.cluster, "ab")
    names = [f"study-worker-{k}.study.ml.svc" for k in range(3)]
    outside.write_text("".join(f"{name} slots=1\n" for name in names))
    assert kubernetes.inside()

    def ask(host: str, *_: object) -> Answer:
        return Answer(
            host.partition(".")[0], 0.0, 9.0, {}, "c", (), {one: f"10.0.0.{k}" for k, one in enumerate(every)}
        )

    every = [*names, *(name.partition(".")[0] for name in names)]
    monkeypatch.setattr(clusters.hostcheck, "ask", ask)
    monkeypatch.setattr(clusters, "address_towards", lambda hosts: "10.0.0.9")
    place = clusters.Site(found, lambda _: None).place(case)
    assert isinstance(place.nodes, SshNodes)
    assert place.nodes.hosts == tuple(names[:2])
    assert place.names == ("study-worker-0", "study-worker-1")
    assert (place.host, place.facts["kind"]) == ("10.0.0.9", "kubernetes")
    assert clusters.planned(found, case).nodes == clusters.ssh_nodes(case.cluster, case.id)


def test_a_folder_of_ones_own_conf_is_not_in_the_pods(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--config-dir=.*: the pods do not have it"):
        pods.manifests(resolved(*WORDS), WORDS, tmp_path)
