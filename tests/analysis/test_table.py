"""Studies on disk become tables: what is sound loads, what is not is named."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from planted import Plant, header, make_case, plant, samples

from analysis import table
from analysis.samples import reduce_samples
from benches import record
from benches.errors import UserError
from benches.spec import content_hash

Make = Callable[..., Path]


def two() -> list[Plant]:
    point = {"model": "resnet18_64", "cluster.ranks_per_node": 2}
    return [
        Plant(make_case("ddp", "gloo", 2), 0.05, point=point),
        Plant(make_case("horovod", "gloo", 2), 0.06, point=point, settings={"horovod.cycle_time_ms": 0.5}),
    ]


def launch_folder(folder: Path, plants: list[Plant], which: int = 0, launch: int = 0) -> Path:
    return folder / "launches" / plants[which].case.id / str(launch)


def test_one_row_a_launch_and_block(study_folder: Make) -> None:
    blocks = table.load(study_folder(two(), rounds=4))
    assert len(blocks) == 2 * 3 * 4
    assert set(blocks["cell"]) == {"ddp/gloo", "horovod/gloo"}
    assert set(blocks["settings.horovod.cycle_time_ms"].dropna()) == {0.5}
    assert set(blocks["point.cluster.ranks_per_node"]) == {2}
    assert (blocks["samples"] == 20 * 32).all()
    assert np.allclose(blocks["step_time_s"] * 20, blocks["wall_s"])
    assert np.allclose(blocks["throughput"], blocks["samples"] / blocks["wall_s"])


def test_a_block_lasts_as_long_as_on_its_slowest_rank(tmp_path: Path) -> None:
    pq.write_table(samples(np.array([[1.0, 3.0, 2.0], [5.0, 4.0, 4.5]]), steps=10), tmp_path / "s.parquet")
    blocks, _, problems = reduce_samples(tmp_path / "s.parquet", world_size=3)
    assert blocks == [(0, 10, 3.0), (1, 10, 5.0)]
    assert problems == []


def test_permuting_ranks_and_rows_changes_nothing(tmp_path: Path) -> None:
    walls = np.random.default_rng(3).uniform(1, 2, (5, 4))
    plain = samples(walls, steps=7)
    shuffled = samples(walls[:, [2, 0, 3, 1]], steps=7)
    order = np.random.default_rng(4).permutation(shuffled.num_rows)
    pq.write_table(plain, tmp_path / "a.parquet")
    pq.write_table(shuffled.take(pa.array(order)), tmp_path / "b.parquet")
    one, other = (reduce_samples(tmp_path / f"{name}.parquet", 4) for name in "ab")
    assert one == other
    assert len(one.blocks) == 5


def test_a_file_is_reduced_the_same_in_many_row_groups(tmp_path: Path) -> None:
    data = samples(np.random.default_rng(5).uniform(1, 2, (6, 3)), steps=11)
    pq.write_table(data, tmp_path / "one.parquet")
    pq.write_table(data, tmp_path / "many.parquet", row_group_size=13)
    assert reduce_samples(tmp_path / "one.parquet", 3) == reduce_samples(tmp_path / "many.parquet", 3)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [math.nan, -1.0, 0.0, math.inf])
def test_a_block_with_an_impossible_time_is_left_out_and_named(tmp_path: Path, bad: float) -> None:
    pq.write_table(samples(np.array([[1.0, 1.0], [1.0, bad]]), steps=2), tmp_path / "s.parquet")
    blocks, _, problems = reduce_samples(tmp_path / "s.parquet", world_size=2)
    assert [block.block for block in blocks] == [0]
    assert any(problem.startswith("block 1 left out: the time of rank 1 is") for problem in problems)


def test_a_block_that_a_rank_lacks_is_left_out_and_named(tmp_path: Path) -> None:
    pq.write_table(samples(np.ones((2, 2)), steps=2), tmp_path / "s.parquet")
    blocks, _, problems = reduce_samples(tmp_path / "s.parquet", world_size=3)
    assert len(blocks) == 0
    assert "block 0 left out: 2 times from 2 of 3 ranks" in problems


def truncate(folder: Path) -> str:
    path = folder / record.SAMPLES
    path.write_bytes(path.read_bytes()[:-200])
    return "samples.parquet cannot be read"


def lose_samples(folder: Path) -> str:
    (folder / record.SAMPLES).unlink()
    return "samples.parquet is missing"


def other_columns(folder: Path) -> str:
    pq.write_table(pa.table({"a": [1]}), folder / record.SAMPLES)
    return "no column kind"


def no_rows(folder: Path) -> str:
    pq.write_table(record.SAMPLE_SCHEMA.empty_table(), folder / record.SAMPLES)
    return "no block was timed"


def other_version(folder: Path) -> str:
    path = folder / record.HEADER
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    return "schema version 99, this Ringduel reads 1"


def cut_header(folder: Path) -> str:
    path = folder / record.HEADER
    path.write_text(path.read_text()[:100])
    return "record.json cannot be read"


def not_an_object(folder: Path) -> str:
    (folder / record.HEADER).write_text("[]")
    return "schema version None"


def another_case(folder: Path) -> str:
    path = folder / record.HEADER
    path.write_text(path.read_text().replace('"case_id": "', '"case_id": "x'))
    return "record of another case"


def too_few_ranks(folder: Path) -> str:
    path = folder / record.HEADER
    path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 1'))
    return "1 ranks ran, 2 were asked for"


@pytest.mark.parametrize(
    "spoil",
    [
        truncate,
        lose_samples,
        other_columns,
        no_rows,
        other_version,
        cut_header,
        not_an_object,
        another_case,
        too_few_ranks,
    ],
)
def test_a_spoilt_launch_is_named_and_the_rest_loads(study_folder: Make, spoil: Callable[[Path], str]) -> None:
    plants = two()
    folder = study_folder(plants)
    said = spoil(launch_folder(folder, plants, 0, 1))
    records = table.read(folder)
    assert [said in problem for problem in records.problems] == [True]
    assert records.problems[0].startswith(f"{plants[0].case.id}/1: ")
    sound = records.blocks.groupby("contestant")["launch"].unique().map(list).tolist()
    assert sound == [[0, 2], [0, 1, 2]]
    assert not records.launches.query("contestant == 0 and launch == 1")["usable"].any()


def test_a_launch_without_a_record_is_missing(study_folder: Make) -> None:
    plants = two()
    folder = study_folder(plants)
    (launch_folder(folder, plants, 1, 2) / record.HEADER).unlink()
    shutil.rmtree(launch_folder(folder, plants, 1, 1))
    launches = table.read(folder).launches.query("contestant == 1")
    assert launches["status"].tolist() == ["ok", "missing", "missing"]


def test_launches_beyond_those_of_the_study_count_too(study_folder: Make) -> None:
    plants = two()
    folder = study_folder(plants)
    case = plants[0].case
    record.write(launch_folder(folder, plants, 0, 7), header(case, 7), samples(np.ones((3, 2)), 20))
    assert table.read(folder).blocks.query("contestant == 0")["launch"].unique().tolist() == [0, 1, 2, 7]


def test_a_study_of_failures_only_loads(study_folder: Make) -> None:
    failed = record.Parity(passed=False, error=0.5, bound=1e-7)
    plants = [Plant(plant.case, plant.step_s, parity=failed) for plant in two()]
    records = table.read(study_folder(plants))
    assert len(records.blocks) == 0
    assert records.launches["status"].tolist() == ["failed"] * 6


def test_a_study_without_launches_loads(study_folder: Make) -> None:
    plants = [Plant(plant.case, plant.step_s, launches=0) for plant in two()]
    records = table.read(study_folder(plants))
    assert records.launches["status"].tolist() == ["missing"] * 6
    assert len(records.blocks) == 0


def test_one_case_of_two_contestants_is_read_for_both(study_folder: Make) -> None:
    case = make_case("local", None, 1)
    plants = [Plant(case, 0.04, point={"cluster.ranks_per_node": ranks}) for ranks in (1, 2)]
    blocks = table.load(study_folder(plants))
    assert blocks.groupby("contestant")["wall_s"].sum().nunique() == 1
    assert set(blocks["contestant"]) == {0, 1}


def test_cases_are_found_by_their_content_when_the_study_was_frozen(study_folder: Make) -> None:
    """A field of Case that came later, with a default, must not lose the launches of an older study."""
    plants = two()
    folder = study_folder(plants)
    content = yaml.safe_load((folder / "study.yaml").read_text())
    for contestant in content["study"]["contestants"]:
        del contestant["case"]["tf32"]
    content["hash"] = content_hash(content["study"])
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    old = content_hash(content["study"]["contestants"][0]["case"])
    assert table.read(folder).case_ids[0] == old != plants[0].case.id


def test_a_study_that_was_changed_is_said(study_folder: Make) -> None:
    folder = study_folder(two())
    path = folder / "study.yaml"
    path.write_text(path.read_text().replace("margin: 0.02", "margin: 0.2"))
    assert table.read(folder).problems == ["study.yaml was changed after it was frozen: its hash does not fit"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no study.yaml"),
        ("", "cannot be read"),
        ("{a: [", "cannot be read"),
        ("study: {}", "cannot be read"),
        ("hash: x\nstudy: {name: x, contestants: []}", "cannot be read"),
        ("- 1", "cannot be read"),
    ],
)
def test_a_folder_that_holds_no_study_is_refused_in_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        table.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_names_that_look_like_paths_lead_nowhere(tmp_path: Path) -> None:
    plants = [Plant(make_case("ddp", "gloo", 1, model="../../x"), 0.05, name="../y", point={"model": "../../x"})]
    plant(tmp_path / "study", plants)
    assert set(table.load(tmp_path / "study")["model"]) == {"../../x"}
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


def test_percentiles_are_those_of_the_slowest_ranks_steps(tmp_path: Path) -> None:
    """Per-step maxima would take the jitter of two ranks for time."""
    table_ = samples(np.ones((1, 2)), steps=100).to_pandas()
    jitter = np.tile([0.9, 1.1], 50)
    table_.loc[table_["kind"].eq("step") & table_["rank"].eq(0), "seconds"] = jitter
    table_.loc[table_["kind"].eq("step") & table_["rank"].eq(1), "seconds"] = np.linspace(0.5, 1.49, 100)
    table_["kind"] = table_["kind"].astype("category")
    pq.write_table(pa.Table.from_pandas(table_, preserve_index=False), tmp_path / "s.parquet")
    found = reduce_samples(tmp_path / "s.parquet", 2).percentiles
    assert found == pytest.approx({"p50_s": 1.0, "p95_s": 0.5 + 0.01 * 94.05, "p99_s": 0.5 + 0.01 * 98.01})


@pytest.mark.parametrize(("steps", "names"), [(19, ["p50_s"]), (20, ["p50_s", "p95_s"]), (99, ["p50_s", "p95_s"])])
def test_a_percentile_that_the_steps_cannot_show_is_left_out(steps: int, names: list[str], tmp_path: Path) -> None:
    pq.write_table(samples(np.ones((1, 2)), steps), tmp_path / "s.parquet")
    assert list(reduce_samples(tmp_path / "s.parquet", 2).percentiles) == names


def test_copies_and_further_launches_are_read_and_kept_apart(study_folder: Make) -> None:
    case = make_case("ddp", "gloo", 2)
    plants = [Plant(case, 0.05, extra={1000: 0.06, 2000: 0.07}), Plant(case, 0.05, name="again", copy=1)]
    records = table.read(study_folder(plants))
    assert records.keys == (case.id, f"{case.id}-1")
    stages = records.launches.query("contestant == 0").groupby("stage")["launch"].apply(list).to_dict()
    assert stages == {"main": [0, 1, 2], "again": [1000], "confirm": [2000]}
    assert records.launches.query("contestant == 1")["launch"].tolist() == [0, 1, 2]
    assert [one.name for one in records.originals.contestants] == ["ddp-gloo"]


def test_launches_of_a_look_that_was_begun_are_expected(study_folder: Make) -> None:
    plants = two()
    plants[0].launches = 4
    launches = table.read(study_folder(plants, launches=3, stop_when="verdict")).launches
    assert launches.query("contestant == 1 and status == 'missing'")["launch"].tolist() == [3]
