"""From composed configuration to a Case: what was left to the machine is decided, and what cannot run is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benches import rules
from benches.errors import UserError
from benches.explain import check, flatten, listed, show
from benches.machine import Machine
from benches.spec import EMULATED, TRANSPORTS, Case, build
from launchers.hosts import parse_hosts, place

ENGINES = ("ddp", "horovod")
"""Engines with settings of their own."""
MISSING = "???"
LINKS, SSH = ("link_gbps", "link_latency_ms", "slow_node"), ("hosts", "nic", "ssh_port", "identity_file")
NO_SLURM, NO_PODS = {"slurm": "asks nothing of Slurm"}, {"kubernetes": "asks nothing of Kubernetes"}
UNUSED = {
    "local": dict.fromkeys(LINKS, "shapes no link") | dict.fromkeys(SSH, "is this machine") | NO_SLURM | NO_PODS,
    "virtual": dict.fromkeys(SSH, "makes its own nodes") | NO_SLURM | NO_PODS,
    "hosts": dict.fromkeys(LINKS, "shapes no link") | NO_SLURM | NO_PODS,
    "slurm": dict.fromkeys(LINKS, "shapes no link")
    | {key: "has Slurm's nodes" for key in SSH if key != "nic"}
    | NO_PODS,
    "kubernetes": dict.fromkeys(LINKS, "shapes no link")
    | {key: "has pods as nodes" for key in SSH if key != "nic"}
    | NO_SLURM,
}
"""By kind of cluster the keys that mean nothing there, and why."""


def case_of(content: dict[str, Any], machine: Machine) -> Case | None:
    """The Case of one contestant at one point; None for the engine local at a world size above 1. Raises UserError.

    `content`: the configuration without its study.
    """
    check_custom(content["model"])
    for key, value in flatten(content, "").items():
        check(key, value)
    case = dict(content)
    case["device"] = device_of(content, machine)
    case["transport"] = transport_of(content, case["device"])
    case["cluster"] = cluster_of(content, case, machine)
    if case["engine"] == "local" and world_size(case["cluster"]) != 1:
        return None
    case["data"] = data_of(content, case["cluster"])
    case["python"] = _absolute(content["python"]) if "/" in (content["python"] or "") else content["python"]
    for engine in ENGINES:
        if engine != case["engine"]:
            case[engine] = None
    del case["results"]
    try:
        built = build(Case, case)
    except msgspec.ValidationError as error:
        raise UserError(str(error).partition(" - at `")[0]) from None
    rules.refuse(built)
    return built


def check_custom(model: dict[str, Any]) -> None:
    """Say what one's own model needs, where it is not there."""
    wanting = [key for key in ("factory", "batch") if model.get(key) in (None, MISSING)]
    if wanting:
        needed = " ".join(f"model.{key}=package.module:callable" for key in wanting)
        raise UserError(f"model={model.get('name', 'custom')}: needs {needed}")


def device_of(content: dict[str, Any], machine: Machine) -> str:
    """cpu or cuda."""
    device, python = content["device"], content["python"]
    if device == "cpu":
        return "cpu"
    found = machine.gpus(python) > 0
    if device == "cuda" and not found:
        why = "torch sees no GPU here; choices: auto, cpu"
        if content["cluster"]["name"] == "slurm":
            why = "cluster.slurm.gres asks for no GPU; set it, such as gpu:8, or take device=cpu"
        if content["cluster"]["name"] == "kubernetes":
            why = "cluster.kubernetes.gpus=0 asks for no GPU; raise it, or take device=cpu"
        raise UserError(f"device=cuda: {why}")
    return "cuda" if found else "cpu"


def transport_of(content: dict[str, Any], device: str) -> str | None:
    """The transport, by the device where none is named; null for one bare process."""
    engine, transport = content["engine"], content["transport"]
    choices = TRANSPORTS[engine]
    if not choices:
        return None
    if transport is None:
        return "nccl" if device == "cuda" else "gloo"
    if transport not in choices:
        raise UserError(f"transport={transport}: engine {engine} does not take it; choices: {listed(choices)}")
    if transport == "nccl" and device == "cpu":
        raise UserError(f"transport=nccl: needs device=cuda; choices on cpu: {listed(choices[:-1])}")
    return str(transport)


def cluster_of(content: dict[str, Any], case: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """The cluster with its ranks counted and MPI's polling decided. Raises UserError where it has no room."""
    cluster = dict(content["cluster"])
    _refuse_unused(cluster)
    del cluster["slurm"], cluster["kubernetes"]
    cluster["slow_node"] = dict(_slow_nodes(cluster["slow_node"]))
    gpus = machine.gpus(content["python"]) if case["device"] == "cuda" else 0
    if cluster["name"] == "hosts":
        _place(cluster, gpus)
    if cluster["ranks_per_node"] == "auto":
        if not gpus:
            raise UserError("cluster.ranks_per_node=auto: counts GPUs, and device is cpu; name a number")
        cluster["ranks_per_node"] = gpus
    ranks = cluster["ranks_per_node"]
    if gpus and ranks > gpus:
        raise UserError(f"cluster.ranks_per_node={ranks}: {ranks} ranks need a GPU each, and torch sees {gpus}")
    _check_cores(cluster, content["allow_oversubscribe"], machine.cores)
    cluster["env"] = {name: check(f"cluster.env.{name}", value) for name, value in cluster["env"].items()}
    # The polling policy belongs to MPI: a case over another transport must not change its id with the cores.
    wanted = cluster["mpi_yield_when_idle"]
    if wanted is None:
        wanted = machine.cores < 2 * _ranks_on_a_machine(cluster)
    controller = content["horovod"]["controller"] if case["engine"] == "horovod" else None
    cluster["mpi_yield_when_idle"] = wanted and "mpi" in (case["transport"], controller)
    return cluster


def data_of(content: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    """The data with the batch of one pass of one rank. Raises UserError unless one of the two is given and fits."""
    data, passes = content["data"], content["accumulation_steps"]
    resolved = dict(data)
    whole, part = resolved.pop("global_batch", None), data.get("per_rank_batch")
    if (whole is None) == (part is None):
        raise UserError(f"data.per_rank_batch={show(part)} and data.global_batch={show(whole)}: give exactly one")
    if whole is not None:
        if content["model"]["factory"] == EMULATED:
            raise UserError(
                f"data.global_batch={whole}: an emulated model sleeps as long whatever the batch, a share as long as "
                "the whole; give data.per_rank_batch"
            )
        world = world_size(cluster)
        if whole % (world * passes):
            by_passes = f" x accumulation_steps={passes}" if passes > 1 else ""
            raise UserError(
                f"data.global_batch={whole}: does not divide by the world size {world} "
                f"(cluster.nodes={cluster['nodes']} x cluster.ranks_per_node={cluster['ranks_per_node']}){by_passes}"
            )
        resolved["per_rank_batch"] = whole // (world * passes)
    if resolved["root"] is not None:
        resolved["root"] = _absolute(resolved["root"])
    return resolved


def world_size(cluster: dict[str, Any]) -> int:
    """Ranks of the whole job."""
    return int(cluster["nodes"] * cluster["ranks_per_node"])


def _ranks_on_a_machine(cluster: dict[str, Any]) -> int:
    """As ClusterSpec counts them, before there is one."""
    return world_size(cluster) if cluster["name"] == "virtual" else int(cluster["ranks_per_node"])


def _refuse_unused(cluster: dict[str, Any]) -> None:
    kind = cluster["name"]
    if kind == "local" and cluster["nodes"] != 1:
        raise UserError(f"cluster.nodes={cluster['nodes']}: cluster=local is one node; raise cluster.ranks_per_node")
    if kind != "hosts" and cluster["nodes"] == "auto":
        raise UserError("cluster.nodes=auto: counts cluster.hosts; name a number")
    for key, why in UNUSED.get(kind, {}).items():
        value = cluster[key]
        if value not in (None, {}, []):
            empty = {"hosts": "[]", "slow_node": "{}", "slurm": "{}", "kubernetes": "{}"}.get(key, "null")
            raise UserError(f"cluster.{key}={show(value)}: cluster={kind} {why}; takes {empty}")


def _slow_nodes(links: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Numbers of nodes as a Case has them. Raises UserError."""
    for node, gbps in links.items():
        if not re.fullmatch("0|[1-9][0-9]*", str(node)):
            raise UserError(f"cluster.slow_node.{node}={show(gbps)}: {node} is no number of a node; takes 0, 1, …")
        yield str(node), gbps


def _place(cluster: dict[str, Any], gpus: int) -> None:
    """Count nodes and ranks where they go by the hosts. Raises UserError where these cannot hold the ranks."""
    hosts = parse_hosts(cluster["hosts"])
    if cluster["nodes"] == "auto":
        cluster["nodes"] = len(hosts)
    if cluster["ranks_per_node"] == "auto":
        cluster["ranks_per_node"] = gpus or min(host.slots for host in hosts[: cluster["nodes"]])
    place(hosts, cluster["nodes"], cluster["ranks_per_node"])


def _check_cores(cluster: dict[str, Any], allowed: bool, cores: int) -> None:
    ranks, threads = _ranks_on_a_machine(cluster), cluster["threads_per_rank"]
    if ranks * threads > cores and not allowed:
        key = "nodes" if cluster["name"] == "virtual" and cluster["nodes"] > 1 else "ranks_per_node"
        raise UserError(
            f"cluster.{key}={cluster[key]}: {ranks} ranks x {threads} threads need {ranks * threads} cores, "
            f"and {cores} may be used; fewer ranks, or allow_oversubscribe=true"
        )


def _absolute(path: str) -> str:
    """Ranks are started elsewhere."""
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100  (a symbolic link to an interpreter is its environment)
