"""`gpu-check` where there is no GPU: its dry run, its refusal, and what it would find wrong in a record."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from running import make_case

from benches import machine, record
from benches.checks import gpu_check


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.usefixtures("nothing_starts")
def test_dry_run_prints_every_command_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gpu_check.main(["--dry-run", "--force"]) == 0
    install, study, ddp, horovod, graphed = capsys.readouterr().out.splitlines()
    assert install.endswith("-m benches install-horovod --gpu --force")
    assert "-m benches run experiment=gpu cluster.ranks_per_node=1 " in study
    assert "torch.distributed.run" in ddp
    assert "--nproc-per-node=1" in ddp
    assert "horovod" in horovod
    assert "-np 1" in horovod
    assert "torch.distributed.run" in graphed
    assert list(tmp_path.iterdir()) == []


def test_the_study_is_what_the_check_promises() -> None:
    words = [*gpu_check.STUDY, "study.name=try"]
    study = gpu_check.compose(words, machine=machine.Machine(gpus=lambda _: 1)).study
    cases = [contestant.case for contestant in study.contestants]
    assert [case.cell for case in cases] == ["ddp/nccl", "horovod/nccl", "ddp/nccl"]
    assert [case.cuda_graphs for case in cases] == [False, False, True]
    assert {(case.device, case.precision, case.cluster.world_size) for case in cases} == {("cuda", "bf16", 1)}
    assert sum(case.limit_s for case in cases) * study.launches < gpu_check.LIMIT_S


@pytest.mark.usefixtures("nothing_starts")
def test_without_a_gpu_it_says_so_before_it_builds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "DEVICE_FILES", ())
    machine.visible_gpus.cache_clear()
    assert gpu_check.main([]) == 2
    assert "device=cuda: torch sees no GPU here" in capsys.readouterr().err


def test_faults_of_a_record_are_named() -> None:
    case = make_case("ddp", "gloo", 1)
    parity = record.Parity(passed=True, error=0.0, bound=0.0)
    header = record.Header(
        case_id=case.id, case=case, launch=0, status="ok", command="", started_at="", duration_s=1.0, world_size=1
    )
    assert gpu_check.faults(header) == [
        "parity failed",
        "timed by perf_counter, not by device events",
        "precision fp32, not bf16",
        "transport gloo, not nccl",
    ]
    good = msgspec.structs.replace(case, precision="bf16", transport="nccl", device="cuda")
    header = msgspec.structs.replace(header, case=good, clock="cuda_event", parity=parity)
    assert gpu_check.faults(header) == []
    failed = msgspec.structs.replace(header, status="timeout", reason="too slow")
    assert gpu_check.faults(failed) == ["status timeout: too slow"]
