"""What may be wrong with a study: each is explained, and a report still comes out of what is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from planted import smoke

from analysis import report, summary
from benches.record import SAMPLE_SCHEMA

Make = Callable[..., Path]


def edited(path: Path, seconds: float) -> None:
    """The first block's time replaced."""
    table = pq.read_table(path).to_pandas()
    table.loc[table.index[table["kind"] == "block"][0], "seconds"] = seconds
    pq.write_table(pa.Table.from_pandas(table, schema=SAMPLE_SCHEMA, preserve_index=False), path)


def renumbered(path: Path) -> None:
    """Every row a block of its own: 10^5 of them, none whole."""
    rows = 100_000
    table = pa.table(
        [
            pa.array(["block"] * rows).dictionary_encode(),
            *(pa.array(column) for column in (np.zeros(rows), np.arange(rows), np.full(rows, -1))),
            pa.array(np.arange(rows, dtype=float)),
            pa.array(np.full(rows, 0.5)),
        ],
        names=SAMPLE_SCHEMA.names,
    )
    pq.write_table(table, path)


def other_kinds(path: Path) -> None:
    """The warm-up's rows have 10^5 names, which a byte cannot count."""
    table = pq.read_table(path)
    kinds = [f"<script>{number}" for number in range(100_000)]
    kept = table.filter(pc.not_equal(table["kind"].cast(pa.string()), "warmup"))
    first = pa.table([kinds, *[[0] * 100_000] * 5], names=table.schema.names)
    types = pa.schema([("kind", pa.string()), *[(field.name, field.type) for field in list(table.schema)[1:]]])
    pq.write_table(pa.concat_tables([first.cast(types), kept.cast(types)]), path)


def set_back(path: Path) -> None:
    """The clock of rank 1 loses an hour before its second block."""
    table = pq.read_table(path).to_pandas()
    later = (table["rank"] == 1) & (table["block"] >= 1)
    table.loc[later, "start_s"] -= 3600
    pq.write_table(pa.Table.from_pandas(table, schema=SAMPLE_SCHEMA, preserve_index=False), path)


def negative_step(path: Path) -> None:
    """One step, not its block."""
    table = pq.read_table(path).to_pandas()
    table.loc[table.index[table["kind"] == "step"][0], "seconds"] = -0.01
    pq.write_table(pa.Table.from_pandas(table, schema=SAMPLE_SCHEMA, preserve_index=False), path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def other_version(path: Path) -> None:
    header = path.parent / "record.json"
    header.write_text(header.read_text().replace('"schema_version": 1', '"schema_version": 99'))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncated, "samples.parquet cannot be read"),
        (lambda path: path.write_bytes(b""), "samples.parquet cannot be read"),
        (renumbered, "block 0 left out: 1 times from 1 of 2 ranks"),
        (other_kinds, "100000 rows are neither warmup, step nor block"),
        (set_back, "the clock of rank 1 ran backwards before block 1: no block of the launch counts"),
        (negative_step, "1 steps have a negative time or none"),
        (lambda path: edited(path, float("nan")), "the time of rank 0 is nan s"),
        (lambda path: edited(path, -1.0), "the time of rank 0 is -1 s"),
        (other_version, "schema version 99"),
        (Path.unlink, "samples.parquet is missing"),
    ],
)
def test_what_is_left_out_is_said_and_the_rest_reported(
    study_folder: Make, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = study_folder(smoke()[4:7], launches=3)
    spoil(next((folder / "launches").rglob("samples.parquet")))
    text = report.write(folder, tmp_path / "out", ("md", "html"))[0].read_text()
    assert said in text
    assert "horovod/mpi" in text


def test_launches_whose_wall_clock_ran_backwards_count_all_the_same(study_folder: Make) -> None:
    """`started_at` dates a launch and no more: steps are timed by a clock that cannot be set."""
    folder = study_folder(smoke()[4:7], launches=3)
    before = summary.summarise(folder)["comparisons"]
    for path in folder.rglob("record.json"):
        year = 2026 - int(path.parent.name)
        path.write_text(path.read_text().replace("2026-01-01T", f"{year}-01-01T"))
    assert summary.summarise(folder)["comparisons"] == before


def test_one_engine_alone_is_reported(study_folder: Make, tmp_path: Path) -> None:
    text = report.write(study_folder(smoke()[4:5]), tmp_path, ("md", "html"))[0].read_text()
    assert "nothing to compare" in text
