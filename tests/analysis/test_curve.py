"""The all-reduce curve: nccl-tests' definitions by hand, damaged files, and where it is shown."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted import Plant, make_case
from rich.console import Console

from analysis import content, curve, markdown, plots, report, summary, table, terminal, words
from benches import record

Make = Callable[..., Path]
SIZES = [4 << k for k in range(27)]


def write_curve(path: Path, latency_s: float, rate: float, ranks: int = 2, sizes: list[int] = SIZES) -> None:
    """latency + bytes ÷ rate; rank 0 is a tenth faster than the last, and iterations differ by 1 % about the mean."""
    rows = [
        {"rank": rank, "bytes": size, "iteration": i, "seconds": (latency_s + size / rate) * slow * (0.99 + 0.01 * i)}
        for rank, slow in zip(range(ranks), (0.9, *[1.0] * (ranks - 1)), strict=True)
        for size in sizes
        for i in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=record.CURVE_SCHEMA), path)


@pytest.fixture
def study(study_folder: Make) -> Path:
    """Three cells with planted latencies and rates."""
    cells = {("ddp", "gloo"): (4e-5, 1.5e9), ("horovod", "gloo"): (1.1e-3, 1.4e9), ("horovod", "mpi"): (1e-3, 4e9)}
    cases = {cell: make_case(*cell, 2) for cell in cells}
    folder = study_folder([Plant(case, 0.05) for case in cases.values()])
    for cell, case in cases.items():
        for launch in range(3):
            write_curve(folder / "launches" / case.id / str(launch) / record.CURVE, *cells[cell])
    return folder


def test_bandwidths_as_nccl_tests_defines_them() -> None:
    # 100 MB in 10 ms: 10 GB/s; among 4 ranks the links carry 2 x 3/4 of it.
    assert curve.algbw(1e8, 0.01) == pytest.approx(10.0)
    assert curve.busbw(1e8, 0.01, 4) == pytest.approx(15.0)
    assert curve.busbw(1e8, 0.01, 2) == pytest.approx(10.0)
    assert curve.busbw(1e8, 0.01, 1) == 0.0


def test_time_is_the_slowest_ranks_mean(tmp_path: Path) -> None:
    write_curve(tmp_path / "c", 0.0, 1e9, ranks=3, sizes=[4, 4000])
    rows, problems = curve.reduce_curve(tmp_path / "c", 3)
    assert problems == []
    assert rows[1]["bytes"] == 4000
    assert rows[1]["iterations"] == 3
    assert rows[1]["seconds"] == pytest.approx(4e-6)


def test_sizes_that_not_all_ranks_timed_are_left_out(tmp_path: Path) -> None:
    write_curve(tmp_path / "c", 0.0, 1e9, sizes=[4, 8, 16])
    rows = pq.read_table(tmp_path / "c").to_pandas()
    rows = rows[~((rows["bytes"] == 8) & (rows["rank"] == 1))]
    rows.loc[rows["bytes"] == 16, "seconds"] = float("nan")
    pq.write_table(pa.Table.from_pandas(rows), tmp_path / "c")
    found, problems = curve.reduce_curve(tmp_path / "c", 2)
    assert [row["bytes"] for row in found] == [4]
    assert [problem.partition(" left")[0] for problem in problems] == [
        "all-reduce of 8 bytes",
        "all-reduce of 16 bytes",
    ]


def test_estimates_over_launches(study: Path) -> None:
    row = summary.reduce(table.read(study)).rows[0]
    assert [point.bytes for point in row.curve] == SIZES
    largest = row.curve[-1]
    seconds = 4e-5 + SIZES[-1] / 1.5e9
    assert largest.time_s.value == pytest.approx(seconds)
    assert largest.time_s.n == 3
    assert largest.busbw.value == pytest.approx(SIZES[-1] / seconds / 1e9)
    assert largest.busbw.low <= largest.busbw.value <= largest.busbw.high


def test_a_curve_that_cannot_be_read_is_a_warning(study: Path) -> None:
    path = next(study.glob("launches/*/0/curve.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    found = summary.reduce(table.read(study))
    assert any("curve.parquet cannot be read" in warning for warning in found.warnings)
    assert sorted(row.curve[0].time_s.n for row in found.rows) == [2, 3, 3]


def test_it_is_in_every_output(study: Path, tmp_path: Path) -> None:
    found = summary.reduce(table.read(study))
    text = markdown.render(content.build(found))
    assert "**All-reduce, resnet18_64, 2 ranks: time; busbw in GB/s**" in text
    assert "| 256 MiB |" in text
    assert "at 256 MiB horovod/mpi is fastest with 3.94 GB/s" in "".join(
        axis.get_title(loc="left") for axis in plots.curves(found).axes
    )
    stream = io.StringIO()
    terminal.show(found, Console(file=stream, width=120))
    assert "256 MiB" in stream.getvalue()
    plain = json.loads(json.dumps(found.plain()))
    assert plain["contestants"][0]["curve"][0]["bytes"] == 4
    assert plain["contestants"][0]["curve"][0]["busbw"]["unit"] == "GB/s"
    names = {path.name for path in report.write(study, tmp_path / "out")}
    assert {"allreduce.csv", "allreduce.svg", "allreduce.png"} <= names
    points = pd.read_csv(tmp_path / "out" / "allreduce.csv")
    assert len(points) == 3 * len(SIZES)
    assert points["busbw_gb_per_s"].gt(0).all()


def test_without_a_curve_nothing_of_it_is_shown(study_folder: Make) -> None:
    found = summary.reduce(table.read(study_folder([Plant(make_case("ddp", "gloo", 2), 0.05)])))
    assert "All-reduce" not in markdown.render(content.build(found))
    assert found.plain()["contestants"][0]["curve"] == []


@pytest.mark.parametrize(
    ("count", "text"),
    [(4, "4 B"), (1024, "1 KiB"), (65536, "64 KiB"), (2**28, "256 MiB"), (2**30, "1 GiB"), (1536, "1.5 KiB")],
)
def test_sizes_in_words(count: int, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(1.23e-5, "12.3 µs"), (4.56e-3, "4.56 ms"), (1.234, "1.23 s")])
def test_durations_in_words(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text
