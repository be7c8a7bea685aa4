"""One contract for every engine and transport, on real ranks: parity, world size, learning rate, a clean end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running import MIXED, launch_case, make_case

from benches import record
from launchers import choose, direct
from launchers.processes import members

CELLS = [("ddp", "gloo"), ("ddp", "mpi"), ("horovod", "gloo"), ("horovod", "mpi")]
ADAM_BF16: dict[str, Any] = {"optimizer": {"name": "adam", "lr": 0.001}, "precision": "bf16"}
CHECKS = [
    "learning_rate",
    "initial_weights",
    "zero_grad",
    "reduction",
    "projection",
    "local",
    "buffers",
    "weights",
    "samples",
]


def check_record(header: record.Header, out: Path) -> None:
    assert header.status == "ok", (header.reason, header.log_tail)
    assert header.parity is not None
    assert header.parity.passed
    assert [check.name for check in header.parity.checks] == CHECKS
    assert header.world_size == header.case.cluster.world_size
    samples = record.read_samples(out).to_pandas()
    ranks = header.world_size
    assert sorted(samples["rank"].unique()) == list(range(ranks))
    assert (samples["kind"] == "step").sum() == ranks * header.case.block_steps
    assert (samples["kind"] == "block").sum() == ranks
    assert (samples["seconds"] > 0).all()
    assert (out / "command.sh").read_text().strip() == header.command


@pytest.mark.horovod
@pytest.mark.parametrize(
    "ranks", [1, 2, pytest.param(3, marks=pytest.mark.proof), pytest.param(4, marks=pytest.mark.proof)]
)
@pytest.mark.parametrize(("engine", "transport"), CELLS)
def test_contract(
    engine: str, transport: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> None:
    changes = ADAM_BF16 if ranks % 2 else {}
    header, out = launch_case(make_case(engine, transport, ranks, **changes), tmp_path, monkeypatch)
    check_record(header, out)
    assert header.effective["buckets_rebuilt" if engine == "ddp" else "controller"]
    assert tokens
    assert not any(members(token) for token in tokens)


def test_local_is_one_bare_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, out = launch_case(make_case("local", None, 1, **ADAM_BF16), tmp_path, monkeypatch)
    check_record(header, out)
    assert header.parity is not None
    assert header.parity.error == 0


@pytest.mark.horovod
@pytest.mark.parametrize(("engine", "transport"), CELLS)
def test_fp16_with_a_gradient_scaler(
    engine: str, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, out = launch_case(make_case(engine, transport, 2, precision="fp16"), tmp_path, monkeypatch)
    check_record(header, out)


def test_unused_parameter_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"name": "unused", "factory": "zoo:Unused", "batch": "zoo:pictures", "loss": "zoo:cross_entropy"}
    header, _ = launch_case(make_case("ddp", "gloo", 2, model=model), tmp_path, monkeypatch)
    assert header.status == "failed"
    assert header.reason is not None
    assert "ddp.find_unused_parameters=false: 1 parameters get no gradient, such as idle" in header.reason


def test_unused_parameter_is_fine_where_ddp_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"name": "unused", "factory": "zoo:Unused", "batch": "zoo:pictures", "loss": "zoo:cross_entropy"}
    case = make_case("ddp", "gloo", 2, model=model, ddp={"find_unused_parameters": True})
    check_record(*launch_case(case, tmp_path, monkeypatch))


@pytest.mark.horovod
@pytest.mark.parametrize(("decay", "passed"), [(0.0, True), (0.1, False)])
def test_decay_of_an_unused_parameter_is_seen(
    decay: float, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Horovod gives it a gradient of zeros, where a bare optimizer finds none and leaves it alone."""
    model = {"name": "unused", "factory": "zoo:Unused", "batch": "zoo:pictures", "loss": "zoo:cross_entropy"}
    case = make_case("horovod", "gloo", 2, model=model, optimizer={"lr": 0.1, "weight_decay": decay})
    header, _ = launch_case(case, tmp_path, monkeypatch)
    assert header.parity is not None
    assert [check.where for check in header.parity.checks if not check.passed] == ([] if passed else ["idle, rank 0"])


def test_a_compiled_model_is_judged_and_timed_in_the_parts_that_ddp_splits_it_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate compiles the same model without DDP first, and its graph must not be taken for DDP's."""
    monkeypatch.setenv("TORCH_LOGS", "ddp_graphs")
    wide = {**MIXED, "kwargs": {"width": 600}}
    case = make_case("ddp", "gloo", 2, compile=True, model=wide, ddp={"bucket_cap_mb": 1})
    header, out = launch_case(case, tmp_path, monkeypatch)
    check_record(header, out)
    log = (out / "logs/rank0.log").read_text()
    assert all(f"---submod_{number} graph---" in log for number in (0, 1))


@pytest.mark.horovod
def test_ranks_that_do_not_find_each_other_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under an mpirun of another MPI than Horovod's: each rank believes that it is alone."""
    monkeypatch.setattr(choose, "command", lambda case, spec, *_: direct.command(spec))
    header, _ = launch_case(make_case("horovod", "mpi", 2), tmp_path, monkeypatch)
    assert header.status == "failed"
    assert "world size 1 where 2 was asked for" in str(header.reason)
