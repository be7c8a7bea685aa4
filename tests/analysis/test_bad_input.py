"""What may be wrong with a study: each is explained, and a report still comes out of what is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted import smoke

from analysis import report
from benches.record import SAMPLE_SCHEMA

Make = Callable[..., Path]


def edited(path: Path, seconds: float) -> None:
    """The first block's time replaced."""
    table = pq.read_table(path).to_pandas()
    table.loc[table.index[table["kind"] == "block"][0], "seconds"] = seconds
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


def test_one_engine_alone_is_reported(study_folder: Make, tmp_path: Path) -> None:
    text = report.write(study_folder(smoke()[4:5]), tmp_path, ("md", "html"))[0].read_text()
    assert "nothing to compare" in text
