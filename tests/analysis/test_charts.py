"""Figures of the library's results: what they show, what their titles state, and that no bitmap is in them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from planted import Plant, make_case, smoke
from test_report import DDP, hostile_plants, reduced

from analysis import charts, drawing, findings, library, plots, steps, sweeps
from analysis.document import Picture
from benches.record import SAMPLE_SCHEMA
from benches.spec import DdpSettings

Make = Callable[..., Path]


def title(figure: Figure) -> str:
    texts = [figure.get_suptitle(), *(axis.get_title(loc="left") for axis in figure.axes)]
    return " ".join("\n".join(texts).replace("\u00a0", " ").split())


def swept() -> list[Plant]:
    """DDP over bucket sizes, Horovod over fusion and cycle time; 25 MiB and 8 MiB with 1 ms are best."""
    plants = []
    for cap, step in ((None, 0.11), (1.0, 0.12), (25.0, 0.10)):
        case = make_case("ddp", "gloo", 2)
        case = msgspec.structs.replace(case, ddp=msgspec.structs.replace(case.ddp, bucket_cap_mb=cap))
        plants.append(Plant(case, step, name=f"ddp-{cap}", settings={"ddp.bucket_cap_mb": cap}))
    for fusion, cycle, step in ((0.0, 1.0, 0.2), (0.0, 5.0, 0.22), (8.0, 1.0, 0.12), (8.0, 5.0, 0.13)):
        case = make_case("horovod", "gloo", 2)
        made = msgspec.structs.replace(case.horovod, fusion_threshold_mb=fusion, cycle_time_ms=cycle)
        settings = {"horovod.fusion_threshold_mb": fusion, "horovod.cycle_time_ms": cycle}
        case = msgspec.structs.replace(case, horovod=made)
        plants.append(Plant(case, step, name=f"horovod-{fusion}-{cycle}", settings=settings))
    return [replace(one, launch_sd=0.001) for one in plants]


def test_efficiency_states_the_finding_and_n(study_folder: Make) -> None:
    figure = charts.efficiency(library.scaling(library.load(study_folder(smoke(), launches=4))))
    assert len(figure.axes) == 2
    assert "resnet18_64: at 2 ranks ddp/gloo 6" in title(figure)
    assert "(4 launches each)" in title(figure)
    assert all(axis.collections for axis in figure.axes), "bands"
    assert figure.axes[0].get_ylim()[0] == 0


def test_the_breakdown_names_who_exposes_most(study_folder: Make) -> None:
    figure = charts.breakdown_bars(library.breakdown(library.load(study_folder(smoke()[:7], launches=3))))
    assert "horovod/gloo spends most on exposed communication: 6" in title(figure)
    assert sum(patch.get_width() for patch in figure.axes[0].patches[:3]) == pytest.approx(1)


def test_the_matrix_shows_each_engine_over_each_transport(study_folder: Make) -> None:
    figure = charts.matrix(library.scaling(library.load(study_folder(smoke()[4:7]))))
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ddp", "horovod"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["gloo", "mpi"]
    assert len(axis.texts) == 3
    assert "ddp/gloo has the smallest median" in title(figure)


def test_sizes_share_one_axis_of_bytes_and_mark_the_default(study_folder: Make) -> None:
    tuned = library.tuning(library.load(study_folder(swept(), launches=3)))
    messages = pd.DataFrame(
        {
            "cell": "ddp/gloo",
            "bytes": [2**10, 2**20, 2**19],
            "seconds": [1e-4, 1e-3, 5e-4],
            "message": [False, False, True],
        }
    )
    figure = sweeps.sizes(tuned, messages)
    top, below = figure.axes
    assert "ddp-25.0 (ddp/gloo) is fastest of 7 settings" in title(figure)
    points = {x for line in top.lines for x in np.asarray(line.get_xdata(), dtype=float)}
    assert {2.0**20, 25 * 2.0**20, 8 * 2.0**20} <= points
    stars = [line for line in top.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert [list(star.get_xdata()) for star in stars] == [[25 * 2**20]]
    crosses = [line for line in below.lines if line.get_marker() == "x"]
    assert list(crosses[0].get_xdata()) == [2**19]


def test_the_heat_map_holds_the_joint_sweep(study_folder: Make) -> None:
    tuned = library.tuning(library.load(study_folder(swept(), launches=3)))
    ((cell, rows, columns),) = sweeps.joint(tuned)
    figure = sweeps.heat_map(tuned, cell, rows, columns)
    assert sorted(text.get_text() for text in figure.axes[0].texts)[0] == "+0.0 %"
    assert len(figure.axes[0].texts) == 4
    assert "fastest at horovod.fusion_threshold_mb 8.0, horovod.cycle_time_ms 1.0" in title(figure)


def test_traces_name_a_rank_that_lags_and_leave_out_impossible_times(study_folder: Make) -> None:
    folder = study_folder(smoke()[4:5], launches=2, rounds=2)
    path = next(folder.rglob("samples.parquet"))
    table = pq.read_table(path).to_pandas()
    table.loc[table.index[table["kind"] == "step"][0], "seconds"] = float("nan")
    table.loc[table.index[table["kind"] == "step"][1], "seconds"] = -1.0
    pq.write_table(pa.Table.from_pandas(table, schema=SAMPLE_SCHEMA, preserve_index=False), path)
    found = steps.read(reduced(folder))
    assert (found["slowest_s"] > 0).all()
    assert len(found) == 2 * 2 * 20
    assert "rank 0 is the slowest in" in title(charts.traces(found))
    assert "(n = 80 steps, 2 launches)" in title(charts.traces(found))


def test_many_steps_keep_the_slowest_of_their_neighbours(study_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reduced(study_folder(smoke()[4:5], launches=1, rounds=3))
    every = steps.read(found)
    monkeypatch.setattr(steps, "MOST_STEPS", 10)
    few = steps.read(found)
    assert len(few) == 10
    assert few["slowest_s"].max() == every["slowest_s"].max()


def test_the_ratio_plot_shows_the_floor_of_the_control(study_folder: Make) -> None:
    base, rival = smoke()[4:6]
    figure = plots.ratios(reduced(study_folder([base, rival, replace(base, copy=1)], launches=4, reference=DDP)))
    dotted = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert len(dotted) == 2
    assert dotted[0] == pytest.approx(1 / dotted[1])
    assert "dotted: the A/A control, ±" in figure.legends[0].get_title().get_text()


def test_no_figure_holds_a_bitmap_or_a_name_as_markup(study_folder: Make) -> None:
    folder = study_folder(hostile_plants())
    blocks = library.load(folder)
    scaled = library.scaling(blocks)
    figures = [charts.matrix(scaled), charts.traces(steps.read(reduced(folder))), charts.efficiency(scaled)]
    for figure in figures:
        text = str(drawing.inline(Picture("x", figure, "<b>")))
        assert "<image" not in text
        assert "<script" not in text
        assert 'aria-label="&lt;b&gt;"' in text
        figure.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize("function", [charts.efficiency, charts.breakdown_bars, charts.matrix])
def test_nothing_measured_is_said(function: Callable[[pd.DataFrame], Figure], study_folder: Make) -> None:
    blocks = library.load(study_folder(smoke()[:1], launches=1))
    empty = library.scaling(blocks) if function is not charts.breakdown_bars else library.breakdown(blocks)
    assert function(empty).texts


def test_messages_lie_on_the_curve_of_their_cell(study_folder: Make) -> None:
    summary = reduced(study_folder(smoke()[4:5], launches=1))
    row = replace(summary.rows[0], effective={"bucket_sizes_bytes": [2**18, 2**20]})
    sizes = [2**k for k in range(10, 22)]
    curve = pd.DataFrame(
        {"contestant": 0, "cell": "ddp/gloo", "bytes": sizes, "seconds": [1e-5 + 1e-9 * size for size in sizes]}
    )
    found = findings.messages(replace(summary, rows=[row]), curve)
    sent = found[found["message"]]
    assert list(sent["seconds"]) == pytest.approx([1e-5 + 1e-9 * 2**18, 1e-5 + 1e-9 * 2**20], rel=1e-3)


def linked() -> list[Plant]:
    """Two engines at one and two ranks, over links of two rates; over the faster one the other engine leads."""
    steps = {("ddp", 1): 0.2, ("horovod", 1): 0.3, ("ddp", 10): 0.15, ("horovod", 10): 0.12}
    plants = []
    for (engine, gbps), step in steps.items():
        for ranks in (1, 2):
            case = make_case(engine, "gloo", ranks)
            cluster = msgspec.structs.replace(case.cluster, link_gbps=float(gbps))
            case = msgspec.structs.replace(case, cluster=cluster)
            point = {"cluster.link_gbps": gbps, "cluster.ranks_per_node": ranks}
            plants.append(Plant(case, step if ranks == 2 else 0.1, point=point, launch_sd=1e-4))
    return plants


def test_points_of_other_axes_have_panels_of_their_own(study_folder: Make) -> None:
    scaled = library.scaling(library.load(study_folder(linked())))
    for figure, words in (
        (charts.matrix(scaled), "has the smallest median"),
        (charts.efficiency(scaled), "at 2 ranks"),
    ):
        titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")]
        assert len(titles) == 2
        assert titles[0].startswith("resnet18_64, cluster.link_gbps=1")
        assert titles[1].startswith("resnet18_64, cluster.link_gbps=10")
        assert all(words in one for one in titles)
    slow, fast = (axis.get_title(loc="left") for axis in charts.matrix(scaled).axes)
    assert ": ddp/gloo has" in slow
    assert ": horovod/gloo has" in fast


def test_a_sweep_of_several_world_sizes_is_several_pictures(study_folder: Make) -> None:
    plants = []
    for ranks, best in ((1, 1.0), (2, 25.0)):
        for cap in (1.0, 5.0, 25.0):
            case = make_case("ddp", "gloo", ranks)
            case = msgspec.structs.replace(case, ddp=DdpSettings(bucket_cap_mb=cap))
            settings, point = {"ddp.bucket_cap_mb": cap}, {"cluster.ranks_per_node": ranks}
            step = 0.1 if cap == best else 0.2
            plants.append(Plant(case, step, name=f"ddp-{cap}", settings=settings, point=point))
    folder = study_folder(plants)
    blocks = library.load(folder)
    parts = findings.sweep(reduced(folder), library.tuning(blocks), library.curves(folder))
    pictures = [part for part in parts if isinstance(part, Picture)]
    assert [one.name for one in pictures] == ["sizes", "sizes_1"]
    assert ["ddp-1.0 (ddp/gloo) is fastest of 3" in title(one.figure) for one in pictures] == [True, False]
    assert "ddp-25.0 (ddp/gloo) is fastest of 3" in title(pictures[1].figure)
