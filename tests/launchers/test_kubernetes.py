"""Manifests: valid against the CRDs, and words that reach the container as they are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benches.errors import UserError
from benches.spec import build
from launchers.kubernetes import WRITE_AND_START, KubernetesSpec, _words, mpi_job, object_name, train_job
from launchers.spec import LaunchSpec
from launchers.supervise import CHECKOUT

SCHEMAS = CHECKOUT.parent / "shared" / "kubernetes"
SPEC = LaunchSpec("python", ("-m", "benches.worker", "it's $(HOME)"), 4, 8, "/work x", {"NCCL_DEBUG": "$(id) $$"})
CASE = "engine: ddp\nname: it's $(HOME) $$\n"
DRIVER = ("python", "-m", "benches", "run", "study.name=it's $(HOME)")
BARE = KubernetesSpec(image="registry.example/ringduel:1")
FULL = KubernetesSpec(
    image="registry.example/ringduel:1",
    namespace="ml",
    cpus="16",
    memory="64Gi",
    gpus=8,
    rdma=("rdma/hca:1",),
    shared_memory="16Gi",
    results_claim="results",
    secrets={"HF_TOKEN": "tokens/hf"},
    pull_secrets=("registry",),
    node_selector=("node.kubernetes.io/instance-type:p5",),
)


def validator(file: str) -> Any:
    """A strict one: fields that the schema does not know are wrong too, as with `kubectl --validate=strict`."""
    jsonschema = pytest.importorskip("jsonschema")
    path = SCHEMAS / file
    if not path.exists():
        pytest.skip(f"no {path.name}: needs ../shared/kubernetes")
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    # A CRD leaves these two to Kubernetes itself.
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft7Validator(closed(schema))


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    named = isinstance(inner.get("properties"), dict) and inner.get("type") == "object"
    return {"additionalProperties": False, **inner} if named else inner


def expanded(text: str, env: dict[str, str]) -> str:
    """What the kubelet makes of a word (third_party/forked/golang/expansion/expand.go)."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda m: "$" if m[1] == "$" else env.get(m[2], m[0]), text)


@pytest.mark.parametrize("asked", [BARE, FULL], ids=["bare", "full"])
def test_mpi_job_is_valid(asked: KubernetesSpec) -> None:
    check = validator("kubeflow.org_mpijobs.yaml")
    manifest = yaml.safe_load(mpi_job(asked, "Weak scaling", SPEC, DRIVER))
    check.validate(manifest)
    manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    assert not check.is_valid(manifest)


@pytest.mark.parametrize("asked", [BARE, FULL], ids=["bare", "full"])
def test_train_job_is_valid(asked: KubernetesSpec) -> None:
    check = validator("trainer.kubeflow.org_trainjobs.yaml")
    manifest = yaml.safe_load(train_job(asked, "Weak scaling", SPEC, "/tmp/c", CASE))
    check.validate(manifest)
    manifest["spec"]["trainer"]["numNodes"] = "4"
    assert not check.is_valid(manifest)


def test_mpi_job_has_what_was_asked() -> None:
    manifest = yaml.safe_load(mpi_job(FULL, "scaling", SPEC, DRIVER))
    assert manifest["metadata"] == {"name": "scaling", "namespace": "ml"}
    assert manifest["spec"]["slotsPerWorker"] == 8
    launcher, worker = (manifest["spec"]["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker"))
    assert (launcher["replicas"], worker["replicas"]) == (1, 4)
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    wanted = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8", "rdma/hca": "1"}
    assert container["resources"] == {"requests": wanted, "limits": wanted}
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert container["env"][1] == {"name": "RINGDUEL_SECRETS", "value": "HF_TOKEN"}
    assert container["env"][2] == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hf"}},
    }
    assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]} == {"shm": "/dev/shm", "results": "/results"}
    assert pod["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "results", "persistentVolumeClaim": {"claimName": "results"}},
    ]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    (first,) = launcher["template"]["spec"]["containers"]
    assert first["resources"]["limits"] == {"cpu": "16", "memory": "64Gi"}
    assert first["workingDir"] == "/work x"


def test_words_reach_the_container_unchanged() -> None:
    env = {"HOME": "/wrong", "NCCL_DEBUG": "wrong"}
    manifest = yaml.safe_load(mpi_job(BARE, "s", SPEC, DRIVER))
    (launcher,) = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert tuple(expanded(word, env) for word in launcher["command"]) == DRIVER
    assert [expanded(entry["value"], env) for entry in launcher["env"]] == ["$(id) $$"]
    trainer = yaml.safe_load(train_job(BARE, "s", SPEC, "/tmp/c", CASE))["spec"]["trainer"]
    words = [expanded(word, env) for word in trainer["command"]]
    assert words[:6] == ["sh", "-c", WRITE_AND_START, "/work x", CASE, "/tmp/c"]
    assert words[6:] == [
        *("torchrun", "--nproc-per-node=8", "--max-restarts=0", "--monitor-interval=0.5", "--no-python"),
        *SPEC.words,
    ]


@given(st.text(alphabet=st.sampled_from("$()A ") | st.characters(exclude_categories=["Cs"])))
def test_the_kubelet_replaces_nothing(word: str) -> None:
    assert expanded(_words([word])[0], {"A": "wrong", "": "wrong"}) == word


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True))
def test_names_are_what_kubernetes_takes(study: str) -> None:
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", object_name(study))
    assert len(object_name(study)) <= 40


def test_names_that_had_to_change_are_still_told_apart() -> None:
    assert object_name("weak-scaling") == "weak-scaling"
    assert len({object_name(name) for name in ("weak-scaling", "weak_scaling", "Weak-scaling")}) == 3


def test_without_an_image_one_line_says_so() -> None:
    for make in (
        lambda: mpi_job(KubernetesSpec(), "s", SPEC, DRIVER),
        lambda: train_job(KubernetesSpec(), "s", SPEC, "/tmp/c", CASE),
    ):
        with pytest.raises(UserError, match=r"^cluster.kubernetes.image=null: a manifest needs an image") as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        {"cpus": "many"},
        {"memory": "64 GB"},
        {"secrets": {"A": "token"}},
        {"rdma": ["rdma/hca"]},
        {"node_selector": ["zone"]},
        {"gpus": -1},
        {"namespace": "A_b"},
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(content: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        build(KubernetesSpec, content)


def test_a_node_of_a_train_job_writes_its_case_and_starts_in_its_folder(tmp_path: Path) -> None:
    there = tmp_path / "a folder"
    there.mkdir()
    start = ["sh", "-c", "pwd; printf '%s\\n' \"$@\"", "-", "a b", "$x"]
    words = [WRITE_AND_START, str(there), CASE, str(tmp_path / "c.yaml"), *start]
    done = subprocess.run(["sh", "-c", *words], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == f"{there}\na b\n$x\n"
    assert (tmp_path / "c.yaml").read_text() == CASE
