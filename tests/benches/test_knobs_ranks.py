"""Every knob that a CPU can have, on two real ranks: the libraries say that it is in force, and the gate is passed.

All settings of an engine share one launch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import HERE, launch_case, make_case

from benches.driver import environment
from benches.engines.horovod_tune import Autotuner
from benches.spec import Case, HorovodSettings, plain
from launchers import choose
from launchers.spec import LaunchSpec
from launchers.supervise import run
from launchers.tools import Tools

RANKS = 2
MIB = 2**20
BIG = {
    "name": "big",
    "factory": "zoo:Mixed",
    "kwargs": {"width": 512},
    "batch": "zoo:pictures",
    "loss": "zoo:cross_entropy",
}
"""About 1.1 MiB of gradients in nine tensors, the largest of 1 MiB."""
NO_SCALAR = {
    "name": "mlp",
    "factory": "benches.workloads.models:mlp",
    "kwargs": {"inputs": 192, "width": 512, "depth": 3, "classes": 8},
    "batch": "zoo:pictures",
    "loss": "zoo:cross_entropy",
}
CORE = min(os.sched_getaffinity(0))


AT_INIT = {
    "fusion_threshold_mb": 2,
    "cycle_time_ms": 20,
    "cache_capacity": 0,
    "disable_group_fusion": True,
    "thread_affinity": f"{CORE},{CORE}",
}


def ddp(**settings: Any) -> dict[str, Any]:
    return {"model": BIG, "ddp": settings}


def powersgd(**settings: Any) -> dict[str, Any]:
    """In one bucket: with more, torch's hook mixes up its messages over gloo, so the configuration refuses it."""
    return {"model": NO_SCALAR, "ddp": {"comm_hook": "powersgd", "bucket_cap_mb": 25, **settings}}


def horovod(**settings: Any) -> dict[str, Any]:
    return {"horovod": {**AT_INIT, **settings}}


DDP: dict[str, dict[str, Any]] = {
    "default": ddp(),
    "bucket_cap_mb": ddp(bucket_cap_mb=0.01),
    "bucket_cap_mb as large as its default": ddp(bucket_cap_mb=25),
    "first_bucket_mb": ddp(first_bucket_mb=0.001),
    "first_bucket_mb beside bucket_cap_mb": ddp(first_bucket_mb=0.001, bucket_cap_mb=0.01),
    "gradient_as_bucket_view": ddp(gradient_as_bucket_view=True),
    "static_graph": ddp(static_graph=True),
    "find_unused_parameters": ddp(find_unused_parameters=True),
    "broadcast_buffers": ddp(broadcast_buffers=True),
    "fp16": ddp(comm_hook="fp16"),
    "bf16": ddp(comm_hook="bf16"),
    "powersgd": powersgd(powersgd_rank=2),
    "powersgd with views": powersgd(gradient_as_bucket_view=True),
    "powersgd of accumulated gradients": {**powersgd(), "accumulation_steps": 2, "precision": "fp16"},
    "fp16 in fp16": {**ddp(comm_hook="fp16"), "precision": "fp16"},
    "accumulation": {**ddp(), "accumulation_steps": 3},
    "accumulation with views in fp16": {
        **ddp(gradient_as_bucket_view=True),
        "accumulation_steps": 2,
        "precision": "fp16",
    },
}
HOROVOD: dict[str, dict[str, Any]] = {
    "default": horovod(),
    "compression": horovod(compression="fp16"),
    "compression in fp16": {**horovod(compression="fp16", gradient_predivide_factor=2), "precision": "fp16"},
    "groups": horovod(groups=2),
    "gradient_predivide_factor": horovod(gradient_predivide_factor=3),
    "accumulation": {**horovod(), "accumulation_steps": 3},
    "accumulation in groups": {**horovod(groups=2), "accumulation_steps": 2},
}


def look_at(engine: str, rows: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What the ranks found, by row."""
    cases = [make_case(engine, "gloo", RANKS, **changes) for changes in rows.values()]
    (folder / "cases.json").write_text(json.dumps([plain(case) for case in cases]))
    spec = LaunchSpec(
        python=sys.executable,
        args=(str(HERE / "knob_ranks.py"), str(folder / "cases.json"), str(folder / "found.json")),
        nodes=1,
        ranks_per_node=RANKS,
        cwd=str(HERE),
        env=environment(cases[0]),
        as_root=os.geteuid() == 0,
    )
    command = choose.command(cases[0], spec, Tools())
    outcome = run(command, log=folder / "log", limit_s=200.0, token=f"knobs-{engine}")
    assert outcome.status == "ok", (outcome, (folder / "log").read_text()[-3000:])
    return dict(zip(rows, json.loads((folder / "found.json").read_text()), strict=True))


@pytest.fixture(scope="module")
def of_ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        return look_at("ddp", DDP, tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="module")
def of_horovod(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        return look_at("horovod", HOROVOD, tmp_path_factory.mktemp("horovod"))


def check_gate(found: dict[str, Any]) -> dict[str, Any]:
    """The gate was passed; returns its checks by name."""
    assert found["parity"]["passed"], found["parity"]
    return {check["name"]: check for check in found["parity"]["checks"]}


@pytest.mark.parametrize("row", DDP)
def test_ddp_passes_the_gate_and_settles(row: str, of_ddp: dict[str, Any]) -> None:
    check_gate(of_ddp[row])
    assert of_ddp[row]["settled"]
    assert sum(of_ddp[row]["effective"]["bucket_sizes_bytes"]) > MIB


@pytest.mark.parametrize(
    "row", ["gradient_as_bucket_view", "static_graph", "find_unused_parameters", "broadcast_buffers"]
)
def test_a_switch_of_ddp_is_on_alone(row: str, of_ddp: dict[str, Any]) -> None:
    effective = of_ddp[row]["effective"]
    switches = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters", "broadcast_buffers")
    assert {name: bool(effective[name]) for name in switches} == {name: name == row for name in switches}


def test_sizes_of_ddps_buckets(of_ddp: dict[str, Any]) -> None:
    sizes = {row: found["effective"]["bucket_sizes_bytes"] for row, found in of_ddp.items()}
    caps = {row: found["effective"]["bucket_cap_bytes"] for row, found in of_ddp.items()}
    assert caps["default"] == caps["bucket_cap_mb as large as its default"] == 25 * MIB
    assert caps["bucket_cap_mb"] == int(0.01 * MIB)
    # null is a value of its own: its first bucket closes at 1 MiB, that of 25 does not.
    assert len(sizes["default"]) == 2
    assert len(sizes["bucket_cap_mb as large as its default"]) == 1
    assert len(sizes["bucket_cap_mb"]) > 2
    first = sizes["first_bucket_mb"]
    assert len(first) == 2
    assert first[0] < 0.02 * MIB < first[1]
    assert len(sizes["first_bucket_mb beside bucket_cap_mb"]) > 2


@pytest.mark.parametrize(
    ("row", "hook"),
    [("fp16", "fp16_compress_hook"), ("bf16", "bf16_compress_hook"), ("powersgd", "powerSGD_hook")],
)
def test_ddps_hook_is_registered_and_loses_what_it_must(row: str, hook: str, of_ddp: dict[str, Any]) -> None:
    assert of_ddp[row]["effective"]["comm_hook"] == hook
    checks, plain_checks = check_gate(of_ddp[row]), check_gate(of_ddp["default"])
    # Beyond what full precision could explain, and within what the setting implies.
    assert plain_checks["reduction"]["bound"] < checks["reduction"]["error"] <= checks["reduction"]["bound"]


def test_ranks_of_powersgd(of_ddp: dict[str, Any]) -> None:
    assert of_ddp["powersgd"]["effective"]["powersgd_rank"] == 2
    assert of_ddp["powersgd with views"]["effective"]["powersgd_rank"] == 1
    assert "powersgd_rank" not in of_ddp["default"]["effective"]


def test_ddp_reduces_once_a_step_however_many_its_passes(of_ddp: dict[str, Any]) -> None:
    assert of_ddp["accumulation"]["iteration"] == of_ddp["default"]["iteration"]


@pytest.mark.horovod
@pytest.mark.parametrize("row", HOROVOD)
def test_horovod_passes_the_gate(row: str, of_horovod: dict[str, Any]) -> None:
    check_gate(of_horovod[row])


@pytest.mark.horovod
def test_what_horovods_optimizer_says(of_horovod: dict[str, Any]) -> None:
    names = ("backward_passes_per_step", "gradient_predivide_factor", "compression", "groups")
    effective = {row: [found["effective"][name] for name in names] for row, found in of_horovod.items()}
    assert effective["default"] == [1, 1.0, "none", None]
    assert effective["compression in fp16"] == [1, 2.0, "fp16", None]
    assert effective["groups"] == [1, 1.0, "none", 2]
    assert effective["gradient_predivide_factor"] == [1, 3.0, "none", None]
    assert effective["accumulation in groups"] == [2, 1.0, "none", 2]


@pytest.mark.horovod
def test_what_horovod_read_at_init(of_horovod: dict[str, Any]) -> None:
    read = of_horovod["default"]["effective"]["environment"]
    assert read["HOROVOD_FUSION_THRESHOLD"] == str(2 * MIB)
    assert read["HOROVOD_CACHE_CAPACITY"] == "0"
    assert read["HOROVOD_DISABLE_GROUP_FUSION"] == "1"
    # A reduction waits for the next cycle, of 20 ms.
    assert of_horovod["default"]["reduction_s"] > 0.01


@pytest.mark.horovod
def test_the_kernel_says_where_horovods_thread_is(of_horovod: dict[str, Any]) -> None:
    assert of_horovod["default"]["effective"]["thread_affinity"] == CORE


@pytest.mark.horovod
def test_compression_loses_what_it_must(of_horovod: dict[str, Any]) -> None:
    checks, plain_checks = check_gate(of_horovod["compression"]), check_gate(of_horovod["default"])
    assert plain_checks["reduction"]["bound"] < checks["reduction"]["error"] <= checks["reduction"]["bound"]


@pytest.mark.horovod
def test_horovod_tunes_itself_before_the_first_timed_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"autotune": True, "autotune_steps_per_sample": 1}
    header, _ = launch_case(make_case("horovod", "gloo", RANKS, horovod=settings), tmp_path, monkeypatch)
    assert header.status == "ok", header.reason
    found = header.effective["autotuned"]
    assert 0 <= found["fusion_threshold_mb"] <= 64
    assert 1 <= found["cycle_time_ms"] <= 100
    # Fixed ones would be left out of the search.
    assert not {"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"} & header.effective["environment"].keys()


@pytest.mark.horovod
def test_a_search_that_does_not_end_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = Autotuner(HorovodSettings(autotune=True, autotune_steps_per_sample=1))
    taken: list[int] = []
    engine = SimpleNamespace(gather_json=lambda value: [value])
    with pytest.raises(RuntimeError, match="had tried 0 of 21 points"):
        tuner.run(engine, taken.append)  # type: ignore[arg-type]
    assert sum(taken) == 30 * 6


@pytest.mark.horovod
def test_a_core_that_is_not_there_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = make_case("horovod", "gloo", 1, horovod={"thread_affinity": "1000"})
    header, _ = launch_case(case, tmp_path, monkeypatch)
    assert header.status == "failed"
    assert "horovod.thread_affinity=1000: local rank 0 is not on its core" in str(header.reason)
