"""DDP through our hook: the thread's order and errors, MPI's types, a clean end, and what is refused before that."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpi4py
import pytest
import torch
import torch.distributed as dist
from running import HERE, MIXED, launch_case, make_case
from torch.nn.parallel import DistributedDataParallel

from benches import preflight
from benches.engines.ddp_mpi import start_mpi
from benches.engines.hook import BucketThread, scale, through_thread
from benches.errors import UserError
from benches.probe import Answer
from launchers import choose
from launchers.spec import LaunchSpec, Mpi
from launchers.supervise import run
from launchers.tools import LIBMPI, Tools, libmpi

CPU = torch.device("cpu")
OPEN_MPI = Mpi("/env/bin/mpirun", "openmpi5", "5.0.11")
SAID = "Open MPI v5.0.11, package: Open MPI somebody@somewhere"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_buckets_are_averaged_in_order_by_one_thread() -> None:
    seen: list[float] = []

    def average(tensor: torch.Tensor) -> None:
        time.sleep(0.01 if not seen else 0)
        seen.append(float(tensor))
        tensor.mul_(2)

    thread = BucketThread(average, CPU)
    futures = [thread.submit(torch.tensor(float(number))) for number in range(20)]
    assert [float(future.wait()) for future in futures] == [2.0 * number for number in range(20)]
    assert seen == list(range(20))
    assert thread.stop(5)
    assert thread.error is None


def test_a_failure_is_raised_at_once_and_ever_after() -> None:
    calls: list[torch.Tensor] = []

    def average(tensor: torch.Tensor) -> None:
        calls.append(tensor)
        raise OSError("a planted fault")

    thread = BucketThread(average, CPU)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="OSError: a planted fault"):
            thread.submit(torch.ones(3)).wait()
    assert len(calls) == 1
    assert isinstance(thread.error, OSError)
    assert thread.stop(5)


def test_a_thread_that_hangs_is_left() -> None:
    thread = BucketThread(lambda tensor: time.sleep(2), CPU)
    thread.submit(torch.ones(1))
    assert not thread.stop(0.1)


@pytest.mark.usefixtures("group")
def test_a_failure_in_the_thread_is_raised_in_backward() -> None:
    calls = iter((False, False, True))

    def average(tensor: torch.Tensor) -> None:
        if next(calls):
            raise OSError("a planted fault")

    thread = BucketThread(average, CPU)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    model.register_comm_hook(thread, through_thread)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="OSError: a planted fault"):
        model(torch.ones(3, 4)).sum().backward()
    assert thread.stop(5)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_buckets_are_scaled_as_ddp_scales_them(kind: torch.dtype) -> None:
    tensor = torch.randn(1000).to(kind)
    expected = tensor * (1 / 3)
    scale(tensor, 1 / 3)
    assert torch.equal(tensor, expected)


def fake_mpi(level: int) -> Any:
    levels = {"THREAD_SINGLE": 0, "THREAD_FUNNELED": 1, "THREAD_SERIALIZED": 2, "THREAD_MULTIPLE": 3}
    return SimpleNamespace(Is_initialized=lambda: True, Query_thread=lambda: level, **levels)


def test_an_mpi_without_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi4py, "MPI", fake_mpi(2), raising=False)
    with pytest.raises(UserError, match=r"^transport=mpi: .*MPI_THREAD_MULTIPLE.* gives thread level serialized; "):
        start_mpi()
    monkeypatch.setattr(mpi4py, "MPI", fake_mpi(3), raising=False)
    assert start_mpi().Query_thread() == 3


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            Answer(mpi_fault="ModuleNotFoundError: No module named 'mpi4py'"),
            "transport=mpi: DDP over MPI needs mpi4py: ModuleNotFoundError: No module named 'mpi4py'; "
            "run: python -m pip install 'mpi4py>=4.1'",
        ),
        (
            Answer(mpi="MPICH Version: 5.0.2 MPICH Release date: x"),
            "transport=mpi: mpi4py loads MPICH Version: 5.0.2 MPICH Release date: x, and /env/bin/mpirun is of Open "
            "MPI 5.0.11; run: python -m pip install 'mpi4py>=4.1', or name that library: "
            "cluster.env.MPI4PY_LIBMPI=PATH",
        ),
        (
            Answer(mpi="Open MPI v4.1.4, package: Debian"),
            "transport=mpi: mpi4py loads Open MPI v4.1.4, and /env/bin/mpirun is of Open MPI "
            "5.0.11; run: python -m pip install 'mpi4py>=4.1', or name that library: cluster.env.MPI4PY_LIBMPI=PATH",
        ),
    ],
)
def test_an_mpi4py_that_does_not_fit_is_refused(answer: Answer, line: str) -> None:
    with pytest.raises(UserError) as caught:
        preflight.judge_mpi(answer, OPEN_MPI, "python")
    assert str(caught.value) == line


def test_an_mpi4py_that_fits_passes() -> None:
    preflight.judge_mpi(Answer(mpi=SAID), OPEN_MPI, "python")
    preflight.judge_mpi(Answer(mpi="MPICH Version: 4.2.1"), Mpi("/m", "mpich", "4.2.1"), "python")


def test_the_library_of_an_mpirun(tmp_path: Path) -> None:
    mpi = Mpi(str(tmp_path / "bin" / "mpirun"), "openmpi5", "5.0.11")
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libmpi.so.12").touch()
    assert libmpi(mpi) is None
    (tmp_path / "lib64" / "libmpi.so.40").touch()
    assert libmpi(mpi) == str(tmp_path / "lib64" / "libmpi.so.40")


def spec(words: tuple[str, ...], ranks: int) -> LaunchSpec:
    path = os.pathsep.join([str(HERE.parent), str(HERE)])
    root = os.geteuid() == 0
    return LaunchSpec(
        sys.executable, words, 1, ranks, str(HERE), {"PYTHONPATH": path}, yield_when_idle=True, as_root=root
    )


def test_ranks_are_told_which_library_belongs_to_their_mpirun() -> None:
    command = choose.command(make_case("ddp", "mpi", 2), spec(("-c", ""), 2), Tools())
    library = libmpi(Tools().mpi(sys.executable))
    assert command.env.get(LIBMPI) == library
    assert library is None or LIBMPI in command.argv


def test_every_type_is_averaged_and_nothing_is_left(tmp_path: Path) -> None:
    ranks = 3
    command = choose.command(
        make_case("ddp", "mpi", ranks), spec(("-m", "zoo_mpi", str(tmp_path), str(ranks)), ranks), Tools()
    )
    outcome = run(command, log=tmp_path / "log", limit_s=120, token="ddp-mpi")
    assert outcome.status == "ok", (tmp_path / "log").read_text()
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for one in seen:
        assert one["described"]["mpi_thread_level"] == "multiple"
        assert one["described"]["backend"] == "gloo"
        assert max(one["errors"].values()) <= 1, one["errors"]
        assert one["finalised"]
        assert one["threads"] == []
        assert one["listening"] == []


def test_a_fault_in_the_thread_ends_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {**MIXED, "name": "torn", "factory": "zoo_mpi:torn", "kwargs": {"call": 3}}
    case = make_case("ddp", "mpi", 2, model=model)
    header, _ = launch_case(case, tmp_path, monkeypatch)
    assert header.status == "failed"
    assert str(header.reason).startswith("rank 1: ")
    assert "OSError: a planted fault of the wire" in str(header.reason)
    assert header.duration_s < case.limit_s / 2


def test_a_rank_that_fails_elsewhere_ends_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {**MIXED, "name": "faulty", "factory": "zoo:Faulty", "kwargs": {"fault": "raise", "call": 5}}
    case = make_case("ddp", "mpi", 2, model=model)
    header, _ = launch_case(case, tmp_path, monkeypatch)
    assert header.reason == "rank 1: ValueError: a planted fault in warmup"
    assert header.duration_s < case.limit_s / 2


def test_the_control_over_gloo_passes_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("ddp", "gloo", 2, ddp={"through_hook": True})
    assert case.our_hook
    header, _ = launch_case(case, tmp_path, monkeypatch)
    assert header.status == "ok", (header.reason, header.log_tail)
    assert header.effective["hook"] == "python thread"
    assert header.effective["comm_hook"] == "through_thread"
