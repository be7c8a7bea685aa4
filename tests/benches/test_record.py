"""The record: what is written is read again, nothing is overwritten, and results/README.md names every field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benches import record, spec

README = Path(__file__).resolve().parents[2] / "results" / "README.md"
DOCUMENTED = [
    record.Header, record.Parity, record.ParityCheck, spec.Study, spec.Contestant, spec.Case, spec.ModelSpec,
    spec.DataSpec, spec.OptimizerSpec, spec.DdpSettings, spec.HorovodSettings, spec.ClusterSpec,
]  # fmt: skip
SIMPLE = {
    "IntType": "integer", "FloatType": "number", "StrType": "text", "BoolType": "true/false", "AnyType": "any",
    "DictType": "mapping", "NoneType": "null",
}  # fmt: skip


def make_case() -> spec.Case:
    return spec.Case(
        engine="ddp",
        transport="gloo",
        device="cpu",
        model=spec.ModelSpec(name="mlp", factory="torch.nn:Linear", batch="benches.workloads.batches:images"),
        data=spec.DataSpec(per_rank_batch=8),
        optimizer=spec.OptimizerSpec(),
        ddp=spec.DdpSettings(),
        cluster=spec.ClusterSpec(ranks_per_node=2),
    )


def make_header(**changes: Any) -> record.Header:
    case = make_case()
    values: dict[str, Any] = {
        "case_id": case.id, "case": case, "launch": 0, "status": "ok", "command": "torchrun …", "world_size": 2,
        "started_at": "2026-01-01T00:00:00+00:00", "duration_s": 1.5,
    }  # fmt: skip
    return record.Header(**values | changes)


def make_samples() -> pa.Table:
    columns = [["warmup", "step", "block"], [0, 0, 0], [-1, 0, 0], [0, 0, -1], [0.0, 0.1, 0.1], [0.1, 0.2, 0.2]]
    return pa.table([pa.array(column) for column in columns], names=record.SAMPLE_SCHEMA.names)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    check = record.ParityCheck(name="reduction", passed=True, error=1e-9, bound=1e-7, where="fc.weight, rank 1")
    header = make_header(
        parity=record.Parity(passed=True, error=1e-9, bound=1e-7, checks=[check]),
        losses=[2.5, None],
        effective={"bucket_bytes": [100, 200]},
        reason="line one\nline two",
    )
    record.write(tmp_path / "0", header, make_samples())
    assert record.read(tmp_path / "0") == header
    samples = record.read_samples(tmp_path / "0")
    assert samples.schema.equals(record.SAMPLE_SCHEMA)
    assert samples["seconds"].to_pylist() == [0.1, 0.2, 0.2]
    assert samples["kind"].to_pylist() == ["warmup", "step", "block"]


def test_a_launch_without_samples_reads_as_none(tmp_path: Path) -> None:
    record.write(tmp_path, make_header(status="failed", reason="rank 1: exited with status 3", world_size=0), None)
    assert record.read(tmp_path).status == "failed"
    assert record.read_samples(tmp_path).num_rows == 0
    assert not (tmp_path / record.SAMPLES).exists()


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    record.write(tmp_path, make_header(), make_samples())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FileExistsError, match="never overwritten"):
        record.write(tmp_path, make_header(launch=1), None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_write_that_fails_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(msgspec.json, "format", fail)
    with pytest.raises(OSError, match="disk full"):
        record.write(tmp_path, make_header(), make_samples())
    assert [path.name for path in tmp_path.iterdir()] == [record.SAMPLES], "no header, no temporary file"


def test_samples_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises((ValueError, pa.ArrowInvalid)):
        record.write(tmp_path, make_header(), make_samples().drop_columns(["rank"]))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    record.write(tmp_path, make_header(), None)
    path = tmp_path / record.HEADER
    path.write_text(path.read_text().replace('"launch"', '"lunch"'))
    with pytest.raises(msgspec.ValidationError):
        record.read(tmp_path)


def documented(heading: str) -> Iterator[list[str]]:
    """Cells of each row of the table under a heading of results/README.md."""
    section = re.search(rf"^### {heading}\n(.*?)(?=^##|\Z)", README.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"results/README.md has no section {heading}"
    for line in section[1].splitlines()[1:]:
        if line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def type_words(kind: Any) -> str:
    """The type of a field as the page writes it."""
    name = type(kind).__name__
    if name == "Metadata":
        return type_words(kind.type)
    if name == "UnionType":
        return " or ".join(map(type_words, kind.types))
    if name in ("ListType", "VarTupleType"):
        item = type_words(kind.item_type)
        return f"list of ({item})" if " or " in item else f"list of {item}"
    if name == "LiteralType":
        return " / ".join(kind.values)
    return kind.cls.__name__ if name == "StructType" else SIMPLE[name]


@pytest.mark.parametrize("kind", DOCUMENTED, ids=lambda kind: kind.__name__)
def test_the_page_names_every_field_with_its_type(kind: type) -> None:
    fields = msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
    wanted = {f"`{field.name}`": type_words(field.type) for field in fields}
    found = {name: type_ for name, type_, _, _ in documented(kind.__name__)}
    assert found == wanted


@pytest.mark.parametrize(("heading", "schema"), [("Samples", record.SAMPLE_SCHEMA), ("Curve", record.CURVE_SCHEMA)])
def test_the_page_names_every_column_of_the_files(heading: str, schema: pa.Schema) -> None:
    types = {"dictionary<values=string, indices=int8, ordered=0>": "dictionary of text", "double": "float64"}
    wanted = {f"`{field.name}`": types.get(str(field.type), str(field.type)) for field in schema}
    assert {name: type_ for name, type_, _, _ in documented(heading)} == wanted


def test_a_draft_is_adopted_when_the_ranks_break_and_gone_when_they_do_not(tmp_path: Path) -> None:
    record.write_draft(tmp_path / "broken", make_header(), make_samples())
    assert not (tmp_path / "broken" / record.HEADER).exists()
    assert record.adopt_draft(tmp_path / "broken", "a warning")
    assert record.read(tmp_path / "broken").warnings == ["a warning"]
    assert record.read_samples(tmp_path / "broken").num_rows == 3
    record.write_draft(tmp_path / "whole", make_header(), make_samples())
    record.write(tmp_path / "whole", make_header(), make_samples())
    names = sorted([record.HEADER, record.SAMPLES])
    assert [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("broken", "whole")] == [names] * 2
    assert not record.adopt_draft(tmp_path, "a warning")


def test_a_curve_is_written_beside_the_samples(tmp_path: Path) -> None:
    curve = pa.table([[0], [4], [0], [0.5]], names=record.CURVE_SCHEMA.names)
    record.write(tmp_path, make_header(), make_samples(), curve)
    assert pq.read_table(tmp_path / record.CURVE).schema.equals(record.CURVE_SCHEMA)


def test_the_page_names_every_key_of_the_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    from benches import provenance

    monkeypatch.setenv("HOROVOD_SECRET_KEY", "hush")
    job = provenance.of_job(make_case())
    wanted = set(job) | {"ranks", "site", "ranks.lateness_s"}
    wanted |= {f"host.{key}" for key in job["host"]} | {f"ranks.{key}" for key in provenance.of_rank()}
    assert {name.strip("`") for name, *_ in documented("Provenance")} == wanted
    assert "hush" not in str(job) + str(provenance.of_rank())


@pytest.mark.parametrize(
    "heading", ["Samples", "Curve", "Frozen", "Provenance", *(kind.__name__ for kind in DOCUMENTED)]
)
def test_every_field_on_the_page_has_a_unit_and_a_meaning(heading: str) -> None:
    rows = list(documented(heading))
    assert rows
    assert all(len(row) == 4 and all(row) for row in rows)
