"""Manifests for Kubernetes: an MPIJob in whose pods a whole study runs, and a TrainJob for DDP alone. Pure values, but
for what a pod reads of itself.

`kubectl apply -f` takes the text. Valid against the CRDs of kubeflow's MPI operator (v2beta1) and trainer (v1alpha1).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from msgspec import Meta, field

from benches.errors import UserError
from benches.spec import Frozen, Whole
from launchers.hosts import Host, parse_hostfile
from launchers.spec import SECRETS, LaunchSpec
from launchers.torchrun import agent_options

Text = Annotated[str, Meta(min_length=1)]
Quantity = Annotated[
    str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?\Z", description="such as 16 or 64Gi")
]
Object = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z", max_length=253)]

Amount = Annotated[str, Meta(pattern=r"^[^:\s]+:[0-9]+\Z", description="such as rdma/hca:1")]
Label = Annotated[str, Meta(pattern=r"^[^:\s]+:[^:\s]*\Z", description="such as zone:a")]

HOSTFILE = Path("/etc/mpi/hostfile")
"""Where the MPI operator says in the launcher pod which workers there are."""
RESULTS = "/results"
GPU = "nvidia.com/gpu"
WRITE_AND_START = 'printf %s "$1" >"$2" && shift 2 && cd -- "$0" && exec "$@"'
LONGEST_NAME = 40
"""A pod's host name has at most 63 characters, the operator's `-launcher-xxxxx` among them."""


class KubernetesSpec(Frozen, frozen=True, kw_only=True):
    """What one asks of Kubernetes."""

    image: Text | None = None
    """Image with this project, sshd and an MPI, as our Dockerfile makes it. There is no default."""
    namespace: Object | None = None
    """null: that of kubectl's context."""
    cpus: Quantity | None = None
    """Cores of each pod, reserved and capped alike; null: no limit."""
    memory: Quantity | None = None
    gpus: Whole = 0
    """GPUs of each worker."""
    rdma: Annotated[tuple[Amount, ...], Meta(description="a list such as [rdma/hca:1]")] = ()
    """Devices of each worker, resource name and count; then it may lock memory (IPC_LOCK). A list, for the names of
    resources and labels have dots, which keys cannot have."""
    shared_memory: Quantity | None = "8Gi"
    """Size of /dev/shm; null: the runtime's 64 MiB, on which NCCL and loaders fail."""
    results_claim: Object | None = None
    """PersistentVolumeClaim, shared by all pods, that holds the results; null: a TrainJob's end with its pods."""
    secrets: dict[str, Annotated[str, Meta(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+\Z")]] = field(default_factory=dict)
    """Variables from secrets by reference: {HF_TOKEN: my-secret/token}."""
    pull_secrets: Annotated[tuple[Object, ...], Meta(description="a list of names")] = ()
    node_selector: Annotated[tuple[Label, ...], Meta(description="a list such as [zone:a]")] = ()
    """Labels that the nodes must have."""
    runtime: Object = "torch-distributed"
    """TrainJob only: the ClusterTrainingRuntime."""


def mpi_job(asked: KubernetesSpec, study: str, spec: LaunchSpec, driver: Sequence[str]) -> str:
    """The manifest whose launcher pod runs the driver (its words), which starts all launches in the same workers.

    `spec`: nodes, ranks per node, folder and variables of the study's largest case. Raises UserError.
    """
    worker = _container(asked, "worker", spec.env, devices=True)
    # As the operator has it: ranks come in over ssh, with keys that it makes and mounts.
    worker |= {"command": ["/usr/sbin/sshd", "-De"]}
    launcher = _container(asked, "launcher", spec.env, devices=False)
    launcher |= {"command": _words(driver), "workingDir": spec.cwd}
    content = {
        "slotsPerWorker": spec.ranks_per_node,
        "launcherCreationPolicy": "WaitForWorkersReady",
        # A failed driver has written why; a second one would only repeat it.
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
        "sshAuthMountPath": "/root/.ssh",
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": _pod(asked, launcher)}},
            "Worker": {"replicas": spec.nodes, "restartPolicy": "Never", "template": {"spec": _pod(asked, worker)}},
        },
    }
    return _dump("kubeflow.org/v2beta1", "MPIJob", asked, study, content)


def train_job(asked: KubernetesSpec, study: str, spec: LaunchSpec, case_file: str, case_text: str) -> str:
    """The manifest of one launch of DDP: the trainer gives torchrun the nodes and the rendezvous.

    Each node first writes `case_text` into `case_file`, a path of its own. Raises UserError.
    """
    words = (
        *("torchrun", *agent_options(spec)),
        *spec.words,
    )
    pod: dict[str, Any] = {
        "containers": [{"name": "node", **_mounts(asked), **_security(asked)}],
        **_placement(asked),
    }
    job = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    content = {
        "runtimeRef": {"name": asked.runtime},
        "trainer": {
            "image": _image(asked),
            "command": ["sh", "-c", WRITE_AND_START, *_words((spec.cwd, case_text, case_file, *words))],
            "env": _env(asked, spec.env),
            "numNodes": spec.nodes,
            "numProcPerNode": spec.ranks_per_node,
            **_resources(asked, "resourcesPerNode"),
        },
        "runtimePatches": [
            {
                "manager": "ringduel.dev/launcher",
                "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
            }
        ],
    }
    return _dump("trainer.kubeflow.org/v1alpha1", "TrainJob", asked, study, content)


def worker_names(study: str, nodes: int) -> tuple[str, ...]:
    """Pods that the operator makes of the workers, by number."""
    return tuple(f"{object_name(study)}-worker-{number}" for number in range(nodes))


def inside() -> bool:
    """Whether this is the launcher pod."""
    return HOSTFILE.exists()


def workers() -> tuple[Host, ...]:
    """The workers, as the launcher pod sees them. Raises UserError elsewhere."""
    try:
        return parse_hostfile(HOSTFILE.read_text())
    except OSError as error:
        raise UserError(f"cluster=kubernetes: {HOSTFILE}: {error.strerror}; ranks start in the launcher pod") from error


def object_name(study: str) -> str:
    """The study's name as Kubernetes takes it: lower case, digits, dashes; a changed one carries a hash of the old."""
    plain = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")
    if plain == study and len(plain) <= LONGEST_NAME and plain[0].isalpha():
        return plain
    return f"rd-{plain[: LONGEST_NAME - 12].strip('-')}-{hashlib.sha256(study.encode()).hexdigest()[:8]}"


def _dump(version: str, kind: str, asked: KubernetesSpec, study: str, content: Mapping[str, Any]) -> str:
    space = {"namespace": asked.namespace} if asked.namespace else {}
    manifest = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": object_name(study), **space},
        "spec": content,
    }
    return str(yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=120))


def _container(asked: KubernetesSpec, name: str, env: Mapping[str, str], *, devices: bool) -> dict[str, Any]:
    return {
        "name": name,
        "image": _image(asked),
        "env": _env(asked, env),
        **_resources(asked, "resources", devices=devices),
        **_mounts(asked),
        **_security(asked),
    }


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values of `NAME:VALUE`."""
    return [(name, value) for name, _, value in (text.partition(":") for text in texts)]


def _image(asked: KubernetesSpec) -> str:
    if asked.image is None:
        raise UserError(
            "cluster.kubernetes.image=null: a manifest needs an image; `docker build -t NAME .` and push it"
        )
    return asked.image


def _words(words: Sequence[str]) -> list[str]:
    """Words for `command`, in which the kubelet replaces $(NAME) and reads $$ as one dollar sign."""
    return [word.replace("$", "$$") for word in words]


def _env(asked: KubernetesSpec, env: Mapping[str, str]) -> list[dict[str, Any]]:
    plain = [{"name": name, "value": value.replace("$", "$$")} for name, value in sorted(env.items())]
    pairs = {name: where.split("/", 1) for name, where in sorted(asked.secrets.items())}
    told = [{"name": SECRETS, "value": ",".join(pairs)}] if pairs else []
    return [
        *plain,
        *told,
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, (secret, key) in pairs.items()
        ),
    ]


def _resources(asked: KubernetesSpec, key: str, *, devices: bool = True) -> dict[str, Any]:
    """Requests equal limits: a pod that is throttled or evicted in between would spoil the clock."""
    wanted: dict[str, str | int | None] = {"cpu": asked.cpus, "memory": asked.memory}
    if devices:
        wanted |= {GPU: asked.gpus, **{name: int(count) for name, count in _pairs(asked.rdma)}}
    quantities = {name: str(value) for name, value in wanted.items() if value}
    return {key: {"requests": quantities, "limits": dict(quantities)}} if quantities else {}


def _security(asked: KubernetesSpec) -> dict[str, Any]:
    return {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}} if asked.rdma else {}


def _mounts(asked: KubernetesSpec) -> dict[str, Any]:
    places = {"shm": "/dev/shm" if asked.shared_memory else None, "results": RESULTS if asked.results_claim else None}
    mounts = [{"name": name, "mountPath": path} for name, path in places.items() if path]
    return {"volumeMounts": mounts} if mounts else {}


def _pod(asked: KubernetesSpec, container: Mapping[str, Any]) -> dict[str, Any]:
    return {"containers": [dict(container)], **_placement(asked)}


def _placement(asked: KubernetesSpec) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    if asked.shared_memory:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": asked.shared_memory}})
    if asked.results_claim:
        volumes.append({"name": "results", "persistentVolumeClaim": {"claimName": asked.results_claim}})
    entries = {
        "volumes": volumes,
        "nodeSelector": dict(_pairs(asked.node_selector)),
        "imagePullSecrets": [{"name": name} for name in asked.pull_secrets],
    }
    return {key: value for key, value in entries.items() if value}
