"""The functions for notebooks: on planted studies, against the summary, and on what other people published."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from planted import PASSED, Plant, contestant, make_case, plant, smoke

from analysis import charts, content, library, markdown, report, stats, summary, table
from analysis.estimate import Estimate
from benches.errors import UserError
from benches.spec import Case, build

Make = Callable[..., Path]
DDP = {"engine": "ddp", "transport": "gloo"}


def weak(sizes: tuple[int, ...] = (1, 2, 4, 8), batch: int | None = None) -> list[Plant]:
    """DDP whose step takes 2 % longer for each further rank; with the bare model. batch: in all, for strong scaling."""
    plants = [Plant(make_case("local", None, 1, batch=batch or 16), 0.1, launch_sd=0)]
    for ranks in sizes:
        case = make_case("ddp", "gloo", ranks, batch=batch // ranks if batch else 16)
        step = 0.1 * (1 + 0.02 * (ranks - 1)) / (ranks if batch else 1)
        plants.append(Plant(case, step, point={"cluster.ranks_per_node": ranks}, launch_sd=0))
    return plants


def test_the_table_has_the_columns_that_are_documented(study_folder: Make) -> None:
    blocks = library.load(study_folder(smoke()[:6], launches=2, rounds=2))
    assert set(library.COLUMNS) <= set(blocks.columns)
    assert set(blocks.columns) - set(library.COLUMNS) == {"key", "stage", "point.model", "point.cluster.ranks_per_node"}
    assert len(blocks) == 6 * 2 * 2


def test_contestants_that_failed_the_gate_are_not_there(study_folder: Make) -> None:
    plants = smoke()[4:6]
    plants[1].parity = msgspec.structs.replace(PASSED, passed=False)
    assert set(library.load(study_folder(plants))["name"]) == {"ddp-gloo"}


def test_studies_of_different_machines_join_only_when_told_to(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plant(tmp_path / name, smoke()[4:6], launches=1)
    for path in (tmp_path / "b").rglob("record.json"):
        path.write_text(path.read_text().replace('"cpu": "Test CPU"', '"cpu": "Other CPU"'))
    with pytest.raises(UserError, match=r"combine=False: machines differ \(Other CPU, 8 cores, Test CPU; Test CPU"):
        library.load(tmp_path / "a", tmp_path / "b")
    both = library.load(tmp_path / "a", tmp_path / "b", combine=True)
    assert both["study"].nunique() == 2
    assert len(library.compare(both)) == 2, "no pair across studies"


def test_weak_scaling_against_each_baseline(study_folder: Make) -> None:
    scaled = library.scaling(library.load(study_folder(weak()[:1] + weak()[2:], launches=2)))
    assert list(scaled["kind"]) == ["one size", "weak", "weak", "weak"]
    largest = scaled.iloc[-1]
    assert largest["efficiency_local"].value == pytest.approx(1 / 1.14, rel=0.01)
    assert largest["efficiency_smallest"].value == pytest.approx(1.02 / 1.14, rel=0.01)
    assert largest["speed_up_smallest"].value == pytest.approx(4 * 1.02 / 1.14, rel=0.01)
    assert largest["efficiency_wrapped_at_1"] is None or math.isnan(largest["efficiency_wrapped_at_1"])


def test_strong_scaling(study_folder: Make) -> None:
    scaled = library.scaling(library.load(study_folder(weak(batch=16), launches=2)))
    assert list(scaled["kind"]) == ["one size", *["strong"] * 4]
    assert scaled.iloc[-1]["speed_up_wrapped_at_1"].value == pytest.approx(8 / 1.14, rel=0.01)
    assert scaled.iloc[-1]["efficiency_local"].value == pytest.approx(1 / 1.14, rel=0.01)


def test_efficiency_is_one_at_the_baseline_and_agrees_with_the_summary(study_folder: Make) -> None:
    folder = study_folder(smoke(), launches=4)
    scaled = library.scaling(library.load(folder)).set_index("contestant")
    rows = summary.reduce(table.read(folder)).rows
    for row in rows:
        for name, estimate in row.efficiency.items():
            assert scaled.loc[row.index, f"efficiency_{name}"].value == pytest.approx(estimate.value, rel=1e-12)
            assert scaled.loc[row.index, f"efficiency_{name}"].low == pytest.approx(estimate.low, rel=1e-12)
    ones = scaled[scaled["world_size"].eq(1) & scaled["cell"].ne("local")]
    assert [one.value for one in ones["efficiency_wrapped_at_1"]] == [1.0] * len(ones)


def test_compare_is_what_the_summary_says(study_folder: Make) -> None:
    folder = study_folder(smoke(), launches=4, reference=DDP)
    found = library.compare(library.load(folder), {"cell": "ddp/gloo"}, margin=0.02)
    said = summary.reduce(table.read(folder)).comparisons
    # The study's level also covers the best of each engine, which the library does not choose.
    assert sorted(one.value for one in found["ratio"]) == pytest.approx(sorted(one.ratio.value for one in said))
    assert all(one.n == 4 and one.level < 0.95 + 0.05 for one in found["ratio"])


def test_compare_allows_for_the_looks_of_its_study_as_the_summary_does(study_folder: Make) -> None:
    plants = [replace(one, launch_sd=0.02) for one in smoke()[4:6]]
    folder = study_folder(plants, launches=6, reference=DDP, stop_when="verdict", margin=0.3)
    (found,) = library.compare(library.load(folder)).to_dict("records")
    (said,) = summary.reduce(table.read(folder)).comparisons
    assert (found["ratio"].low, found["ratio"].level) == pytest.approx((said.ratio.low, 1 - 0.05 / 4))
    assert found["verdict"] == said.verdict
    scaled = library.scaling(library.load(study_folder(smoke(), launches=4, stop_when="verdict")))
    assert {one.level for one in scaled["efficiency_local"].dropna() if one.value != 1} == {1 - 0.05 / 4}


def test_another_heat_meets_the_copy_of_the_reference_in_it(study_folder: Make) -> None:
    base, rival = smoke()[4:6]
    plants = [base, replace(rival, heat=1), replace(base, copy=2, heat=1, step_s=2 * base.step_s)]
    found = library.compare(library.load(study_folder(plants)))
    assert found["ratio"].iloc[0].value == pytest.approx(0.1250 / 0.0713 / 2, rel=0.05)


def test_the_parts_of_a_step_sum_to_it(study_folder: Make) -> None:
    parts = library.breakdown(library.load(study_folder(smoke(), launches=3)))
    assert len(parts) == 6
    for _, row in parts.iterrows():
        assert row["step_s"].value == pytest.approx(
            sum(row[name].value for name in ("compute_s", "engine_s", "exposed_s"))
        )
    first = parts.iloc[0]
    assert first["exposed_s"].value == pytest.approx(0.0713 - 0.0471, rel=0.1)
    assert first["exposed_s"].low < first["exposed_s"].value < first["exposed_s"].high


def test_tuning_finds_the_planted_best_and_its_equals(study_folder: Make) -> None:
    plants = []
    for cap, step in ((1.0, 0.12), (5.0, 0.1), (25.0, 0.1001)):
        case = make_case("ddp", "gloo", 2)
        case = msgspec.structs.replace(case, ddp=msgspec.structs.replace(case.ddp, bucket_cap_mb=cap))
        plants.append(Plant(case, step, name=f"ddp-{cap}", settings={"ddp.bucket_cap_mb": cap}))
    found = library.tuning(library.load(study_folder(plants, launches=5)))
    assert list(found["tied"]) == [False, True, True]
    assert found["best"].sum() == 1
    assert found["against_best"].iloc[0].value == pytest.approx(1.2, rel=0.03)
    assert list(found["settings.ddp.bucket_cap_mb"]) == [1.0, 5.0, 25.0]


def test_settings_of_different_heats_meet_through_the_reference(study_folder: Make) -> None:
    """The second heat ran on a slower machine; its setting is the faster one all the same."""
    base = make_case("ddp", "gloo", 2)
    plants = [Plant(base, 0.1, name="ddp", launch_sd=1e-4)]
    plants.append(replace(plants[0], name="ddp (heat 2)", copy=2, heat=1, step_s=0.15))
    for heat, (cycle, step) in enumerate(((1.0, 0.12), (5.0, 0.165))):
        case = make_case("horovod", "gloo", 2)
        case = msgspec.structs.replace(case, horovod=msgspec.structs.replace(case.horovod, cycle_time_ms=cycle))
        settings = {"horovod.cycle_time_ms": cycle}
        plants.append(Plant(case, step, name=f"h-{cycle}", settings=settings, launch_sd=1e-4, heat=heat))
    found = library.tuning(library.load(study_folder(plants, launches=5)))
    assert list(found["best"]) == [False, True]
    # 0.12 ÷ 0.1 over 0.165 ÷ 0.15.
    assert found["against_best"].iloc[0].value == pytest.approx(1.2 / 1.1, rel=0.01)


def test_cost_is_price_by_time(study_folder: Make) -> None:
    scaled = library.scaling(library.load(study_folder(weak()[:1], launches=1)))
    found = library.cost(scaled, price_per_node_hour=3.6, samples_per_epoch=160)
    # 160 samples a second: a million takes 6250 s at a thousandth a second.
    assert found["cost_per_million"].iloc[0].value == pytest.approx(6.25, rel=0.01)
    assert found["cost_per_epoch"].iloc[0].value == pytest.approx(0.001, rel=0.01)
    with pytest.raises(ValueError, match="price_per_node_hour=0"):
        library.cost(scaled, 0)


def test_values_spreads_estimates_into_numbers() -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "ratio": [Estimate(2.0, 1.0, 3.0, 0.95, 4, "ratio"), None]})
    found = library.values(frame)
    assert list(found.columns) == ["name", "ratio", "ratio_low", "ratio_high", "ratio_level", "ratio_n"]
    assert found["ratio_high"].iloc[0] == 3.0
    assert np.isnan(found["ratio"].iloc[1])


def test_nothing_changes_its_arguments(study_folder: Make) -> None:
    blocks = library.load(study_folder(smoke()[:6], launches=2))
    before = blocks.copy(deep=True)
    for function in (library.scaling, library.compare, library.breakdown, library.tuning):
        function(blocks)
    pd.testing.assert_frame_equal(blocks, before)


def test_virtual_nodes_are_never_ranked_with_real_ones(study_folder: Make) -> None:
    plants = [
        Plant(make_case(engine, "gloo", 2, cluster=cluster), 0.1, name=f"{engine}-{cluster}")
        for cluster in ("local", "virtual")
        for engine in ("ddp", "horovod")
    ]
    blocks = library.load(study_folder(plants))
    pairs = library.compare(blocks)[["a", "b"]].to_numpy().tolist()
    assert pairs == [["horovod-local", "ddp-local"], ["horovod-virtual", "ddp-virtual"]]
    figure = charts.matrix(library.scaling(blocks))
    assert len(figure.axes) == 2
    assert "[virtual]" in figure.axes[1].texts[0].get_text()


def bound(folder: Path, where: Callable[[Case], bool]) -> Path:
    """The study with every launch of these cases on links that carried less than asked."""
    for path in folder.rglob("record.json"):
        header = json.loads(path.read_text())
        if where(build(Case, header["case"])):
            header["provenance"]["site"] = {"kind": "virtual", "short": [0]}
            path.write_text(json.dumps(header))
    return folder


def test_host_bound_points_are_left_out_of_the_laws_and_the_report_says_which(study_folder: Make) -> None:
    plants = [one for one in weak((1, 2, 4, 8, 16)) if one.case.engine == "ddp"]
    slow = [replace(one, step_s=3 * one.step_s) if one.case.cluster.world_size == 16 else one for one in plants]
    folder = bound(study_folder(slow, launches=2), lambda case: case.cluster.world_size == 16)
    scaled = library.scaling(library.load(folder))
    for _, row in library.laws(scaled).iterrows():
        assert (row["sizes"], row["left_out"]) == ([1, 2, 4, 8], [16])
        # Step time grows by 2 % a rank, which is Amdahl's law with just that serial share.
        assert row["sigma"].value == pytest.approx(0.02, rel=0.1)
        assert "host-bound" not in row["marks"]
    text = markdown.render(content.build(summary.reduce(table.read(folder))))
    assert "left out of the fits, being host-bound: resnet18_64, ddp/gloo at 16 ranks" in text


def test_a_family_that_is_host_bound_throughout_has_no_law(study_folder: Make) -> None:
    folder = bound(study_folder(weak()[1:], launches=2), lambda _: True)
    found = library.laws(library.scaling(library.load(folder)))
    assert list(found["refused"]) == [
        f"0 world sizes; {least} are the least for {least - 1} unknowns" for least in (3, 4)
    ]
    assert list(found["left_out"]) == [[1, 2, 4, 8]] * 2


def test_links_of_another_rate_are_another_curve(study_folder: Make) -> None:
    plants = []
    for gbps in (1.0, 10.0):
        for nodes in (1, 2, 4, 8):
            case = make_case("ddp", "gloo", 1, cluster="virtual")
            cluster = msgspec.structs.replace(case.cluster, nodes=nodes, link_gbps=gbps)
            step = 0.1 * (1 + (0.2 if gbps == 1.0 else 0.02) * (nodes - 1))
            point = {"cluster.link_gbps": gbps, "cluster.nodes": nodes}
            plants.append(Plant(msgspec.structs.replace(case, cluster=cluster), step, point=point, launch_sd=0))
    found = library.laws(library.scaling(library.load(study_folder(plants, launches=2))))
    amdahl = found[found["law"] == "amdahl"]
    assert list(amdahl["point"]) == ["cluster.link_gbps=1.0", "cluster.link_gbps=10.0"]
    assert [one.value for one in amdahl["sigma"]] == pytest.approx([0.2, 0.02], rel=0.1)


def test_a_host_bound_curve_has_no_alpha_and_beta(study_folder: Make) -> None:
    curves = pd.DataFrame({"bytes": [2**k for k in range(10, 20)]}).assign(
        seconds=lambda frame: 1e-5 + 1e-9 * frame["bytes"],
        **{
            "study": "s",
            "model": "m",
            "name": "n",
            "cell": "ddp/gloo",
            "world_size": 2,
            "copy": 0,
            "marks": "virtual",
            "contestant": 0,
            "at": "",
            "nodes": 1,
        },
    )
    (fitted,) = library.allreduce_fit(curves)["refused"]
    assert fitted == ""
    (refused,) = library.allreduce_fit(curves.assign(marks="virtual host-bound"))["refused"]
    assert refused == "host-bound, so left out"


def test_each_contestant_has_an_alpha_and_beta_of_its_own() -> None:
    """One name at two points of an axis is two."""
    sizes = [2**k for k in range(10, 20)]
    told = {"study": "s", "model": "m", "name": "n", "cell": "ddp/gloo", "world_size": 2, "copy": 0, "marks": ""}
    links = {1: 8e-9, 10: 8e-10}
    parts = [
        pd.DataFrame({"bytes": sizes, "seconds": [1e-5 + beta * size for size in sizes]}).assign(
            contestant=place, at=f"cluster.link_gbps={gbps}", nodes=2, **told
        )
        for place, (gbps, beta) in enumerate(links.items())
    ]
    found = library.allreduce_fit(pd.concat(parts))
    assert list(found["at"]) == ["cluster.link_gbps=1", "cluster.link_gbps=10"]
    assert [one.value for one in found["beta_s_per_byte"]] == pytest.approx(list(links.values()), rel=1e-6)


def test_without_a_launch_of_the_bare_model_the_engine_alone_is_the_baseline(study_folder: Make) -> None:
    plants = [replace(one, launches=1 if one.case.engine == "local" else None) for one in smoke()]
    folder = study_folder(plants, launches=2)
    for one in plants:
        if one.case.cluster.world_size > 1:
            shutil.rmtree(folder / "launches" / contestant(one).key / "0")
    parts = library.breakdown(library.load(folder))
    assert len(parts) == 6
    assert [row["compute_s"] for _, row in parts.iterrows()] == [None] * 6
    assert all(row["exposed_s"].n == 1 for _, row in parts.iterrows())
    report.write(folder, folder / "report", ("md", "html"))


def test_where_nothing_is_common_there_are_no_parts(study_folder: Make) -> None:
    folder = study_folder(smoke(), launches=2)
    for one in smoke():
        number = 0 if one.case.cluster.world_size > 1 else 1
        shutil.rmtree(folder / "launches" / contestant(one).key / str(number))
    assert not len(library.breakdown(library.load(folder)))
    report.write(folder, folder / "report", ("md", "html"))


def test_settings_without_a_common_launch_are_not_called_slower(study_folder: Make) -> None:
    plants = []
    for cap, launches in ((1.0, 4), (25.0, 4), (50.0, 1)):
        case = make_case("ddp", "gloo", 2)
        case = msgspec.structs.replace(case, ddp=msgspec.structs.replace(case.ddp, bucket_cap_mb=cap))
        step = 0.1 if cap == 25.0 else 0.12
        plants.append(Plant(case, step, name=f"ddp-{cap}", settings={"ddp.bucket_cap_mb": cap}, launches=launches))
    folder = study_folder(plants, launches=4)
    shutil.rmtree(folder / "launches" / contestant(plants[1]).key / "0")
    found = library.tuning(library.load(folder))
    assert list(found["tied"]) == [False, True, True]
    assert found["against_best"].iloc[2] is None
    level = found["against_best"].iloc[0].level
    assert level == pytest.approx(stats.simultaneous(0.95, 3)), "any of three pairs could have been the first two"
    report.write(folder, folder / "report", ("md",))
    assert "| not compared |" in (folder / "report" / "report.md").read_text()
