"""The analysis on numbers that others measured and published: it says what their authors say."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from analysis import curve, library, literature

HERE = Path(__file__).parent / "published"


def ddp_readme() -> pd.DataFrame:
    """Examples a second and GPU, of the whole job."""
    frame = pd.read_csv(HERE / "ddp_readme_v100_p50.csv")
    return frame.assign(
        name=frame["wrap"],
        engine=frame["wrap"].map({"no_ddp": "local", "ddp": "ddp"}),
        transport=frame["wrap"].map({"no_ddp": "", "ddp": "nccl"}),
        world_size=frame["gpus"],
        throughput=frame["ex_per_s_per_gpu"] * frame["gpus"],
        per_rank_batch=32,
        source="pytorch/benchmarks/distributed/ddp",
    )


def test_efficiency_of_ddp_on_16_gpus_is_what_its_readme_says() -> None:
    scaled = library.scaling(literature.tidy(ddp_readme()))
    (row,) = [row for _, row in scaled.iterrows() if (row["model"], row["world_size"]) == ("resnet50", 16)]
    assert row["efficiency_local"].value == pytest.approx(0.930, abs=0.0005)
    assert row["efficiency_wrapped_at_1"].value == pytest.approx(0.959, abs=0.0005)
    assert math.isinf(row["efficiency_local"].high), "one figure has no interval"


@pytest.mark.parametrize(
    ("impl", "speed_up"), [("NGC TF 1.15 (no XLA)", 26.25), ("PaddlePaddle 1.8.3", 26.50), ("TF 2.3", 29.27)]
)
def test_speed_ups_of_dlperf(impl: str, speed_up: float) -> None:
    """Of 32 GPUs over one, as the README of Oneflow-Inc/DLPerf prints them (ResNet50-V1.5, FP32, batch 128)."""
    frame = pd.read_csv(HERE / "dlperf_v100_throughput.csv").query("precision == 'fp32' and batch_per_gpu == 128")
    frame = frame.assign(name=frame["impl"], engine="ddp", world_size=frame["gpus"], per_rank_batch=128)
    scaled = library.scaling(literature.tidy(frame.assign(throughput=frame["samples_per_s_median"])))
    own = scaled[(scaled["name"] == impl) & (scaled["world_size"] == 32)].iloc[0]
    assert round(own["speed_up_smallest"].value, 2) == speed_up


def test_a_run_that_autotunes_is_about_twice_as_slow() -> None:
    frame = pd.read_csv(HERE / "aliyun_horovod_fusion_autotune.csv").query("epochs == 50")
    steps = frame["epochs"] * frame["batches_per_epoch"]
    frame = frame.assign(name=frame["setting"], engine="horovod", world_size=4, throughput=steps / frame["total_s"])
    blocks = literature.tidy(frame)
    for model, ratio in (("resnet50", 1.78), ("vgg16", 2.05)):
        found = library.compare(blocks[blocks["model"] == model], {"name": "default"}).set_index("a")
        assert found.loc["autotune ON during run", "ratio"].value == pytest.approx(ratio, abs=0.005)


def test_bus_bandwidth_from_time_is_what_nccl_tests_print() -> None:
    frame = pd.read_csv(HERE / "nccl_allreduce_busbw.csv").dropna(subset=["time_us"])
    assert len(frame) == 20
    for row in frame.itertuples():
        assert curve.busbw(row.bytes, row.time_us * 1e-6, 8) == pytest.approx(row.busbw_GBps, rel=0.005)
        assert curve.algbw(row.bytes, row.time_us * 1e-6) == pytest.approx(row.algbw_GBps, rel=0.005)


def test_nccls_change_of_protocol_shows_in_the_fit() -> None:
    frame = pd.read_csv(HERE / "nccl_allreduce_busbw.csv").dropna(subset=["time_us"])
    told = {"study": "-", "model": "-", "name": "nccl", "cell": "ddp/nccl", "marks": "", "world_size": 8, "copy": 0}
    told |= {"contestant": 0, "at": "", "nodes": 1}
    fitted = library.allreduce_fit(frame.assign(seconds=frame["time_us"] * 1e-6, **told))
    assert list(fitted["from_bytes"]) == [2**15, 2**20, 2**24]
    assert fitted["busbw_limit"].iloc[-1].value == pytest.approx(234.89, rel=0.04), "what the largest message reached"


def test_strong_scaling_of_epoch_times() -> None:
    frame = pd.read_csv(HERE / "itwinai_epoch_time.csv").query("case == 'virgo'")
    frame = frame.assign(model="virgo", name=frame["strategy"], engine="ddp", world_size=frame["gpus"])
    scaled = library.scaling(literature.tidy(frame.assign(throughput=1 / frame["avg_epoch_time_s"])))
    own = scaled[(scaled["name"] == "torch-ddp") & (scaled["world_size"] == 32)].iloc[0]
    assert own["speed_up_smallest"].value == pytest.approx(57.83 / 11.07)
    assert own["efficiency_smallest"].value == pytest.approx(57.83 / 11.07 / 8)


def test_a_summary_must_be_whole() -> None:
    frame = ddp_readme()
    with pytest.raises(ValueError, match="no column throughput"):
        literature.tidy(frame.drop(columns="throughput"))
    with pytest.raises(ValueError, match="not above 0"):
        literature.tidy(frame.assign(throughput=0))
