"""The workload allreduce: sizes, exact checks, and that all ranks time alike; on real ranks, beside the steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from running import launch_case, make_case

from benches import record, tables
from benches.engines.base import Engine
from benches.workloads import allreduce

MIB = 2**20
CELLS = [("ddp", "gloo"), ("ddp", "mpi"), ("horovod", "gloo"), ("horovod", "mpi")]


class Ranks:
    """As much of an engine as the curve uses: this rank and others that have filled their tensors alike."""

    device = torch.device("cpu")

    def __init__(self, rank: int, world_size: int, wrong_from: int | None = None) -> None:
        self.rank, self.world_size, self.wrong_from, self.sums = rank, world_size, wrong_from, 0

    def summing(self, tensor: torch.Tensor) -> Callable[[], object]:
        return partial(self.add, tensor)

    def add(self, tensor: torch.Tensor) -> None:
        self.sums += 1
        if not tensor.any():
            return
        total = torch.zeros_like(tensor)
        for rank in range(self.world_size):
            part = torch.empty_like(tensor)
            allreduce.fill(part, rank)
            total += part
        tensor.copy_(total)
        if self.wrong_from is not None and tensor.numel() * 4 >= self.wrong_from:
            tensor[-1] += 1

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor] * self.world_size

    def barrier(self) -> None:
        pass


def engine(*values: int, **changes: int) -> Engine:
    return Ranks(*values, **changes)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("most_mb", "last", "count"), [(256, 256 * MIB, 27), (1, MIB, 19), (0.001, 1024, 9), (3, 2 * MIB, 20)]
)
def test_sizes_double_from_one_number_to_the_largest_that_fits(most_mb: float, last: int, count: int) -> None:
    found = allreduce.sizes(most_mb)
    assert found[0] == 4
    assert found[-1] == last
    assert len(found) == count
    assert found == [4 * 2**k for k in range(count)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4000])
@pytest.mark.parametrize("elements", [1, 1020, allreduce.CHUNK + 7])
def test_the_exact_sum_passes_and_any_other_does_not(world_size: int, elements: int) -> None:
    tensor = torch.empty(elements)
    allreduce.fill(tensor, 0)
    # What rank r fills is what rank 0 fills, plus r.
    tensor = tensor.double().mul(world_size).add(world_size * (world_size - 1) / 2).float()
    allreduce.check(tensor, 0, world_size)
    tensor[-1] += 1
    with pytest.raises(RuntimeError, match=f"of {elements * 4} bytes: rank 0 got .* at element {elements - 1}, where"):
        allreduce.check(tensor, 0, world_size)


def test_values_in_the_wrong_place_do_not_pass() -> None:
    tensor = torch.empty(4096)
    allreduce.fill(tensor, 0)
    with pytest.raises(RuntimeError, match="all-reduce of 16384 bytes"):
        allreduce.check(tensor.roll(1024), 0, 1)


def test_a_wrong_sum_ends_the_curve_at_its_size() -> None:
    with pytest.raises(RuntimeError, match="all-reduce of 256 bytes: rank 1 got"):
        allreduce.measure(engine(1, 2, wrong_from=256), 0.001)


def test_every_size_is_timed_often_enough_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "SIZE_S", 0.0)
    few = allreduce.measure(engine(0, 2), 0.001)
    assert few.shape == (9 * allreduce.FEWEST, 3)
    monkeypatch.setattr(allreduce, "SIZE_S", 1e9)
    many = allreduce.measure(engine(0, 2), 0.001)
    assert many.shape == (9 * allreduce.MOST, 3)
    assert (many[:, 2] > 0).all()
    assert many[:: allreduce.MOST, 0].tolist() == allreduce.sizes(0.001)


def test_the_table_says_which_rank() -> None:
    part = torch.tensor([[4.0, 0.0, 0.5], [4.0, 1.0, 0.25]], dtype=torch.float64)
    table = tables.curve([part, part * 1])
    assert table.schema == record.CURVE_SCHEMA
    assert table["rank"].to_pylist() == [0, 0, 1, 1]
    assert table["iteration"].to_pylist() == [0, 1, 0, 1]
    assert table["seconds"].to_pylist() == [0.5, 0.25, 0.5, 0.25]


@pytest.mark.horovod
@pytest.mark.parametrize(("name", "transport"), CELLS)
def test_the_curve_and_the_messages_stand_beside_the_steps(
    name: str, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, out = launch_case(
        make_case(name, transport, 2, curve_max_mb=0.001, trace_messages=True), tmp_path, monkeypatch
    )
    assert header.status == "ok", (header.reason, header.log_tail)
    assert header.warnings == []
    curve = pq.read_table(out / record.CURVE).to_pandas()
    assert sorted(curve["bytes"].unique()) == allreduce.sizes(0.001)
    assert (curve["seconds"] > 0).all()
    counts = curve.groupby(["bytes", "rank"]).size().unstack()
    assert (counts[0] == counts[1]).all()
    assert counts.min().min() >= allreduce.FEWEST
    sizes = header.effective["message_bytes" if name == "horovod" else "bucket_sizes_bytes"]
    assert header.effective["messages_per_step"] == len(sizes)
    assert sum(sizes) == header.gradient_bytes
    assert not (out / record.DRAFT).exists()
