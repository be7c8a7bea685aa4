"""What must not matter does not: how steps are cut in blocks, which rank is which, the unit of time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import plant, samples, smoke

from analysis import library, stats
from analysis.samples import reduce_samples
from benches.record import SAMPLE_SCHEMA

times = st.lists(st.floats(1e-4, 10), min_size=4, max_size=12)


@given(times, st.data())
@settings(max_examples=60, deadline=None)
def test_throughput_is_the_same_however_steps_are_cut_in_blocks(seconds: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(seconds) - 1))
    whole = stats.throughput([32 * len(seconds)], [sum(seconds)])
    parts = [seconds[:cut], seconds[cut:]]
    cut_up = stats.throughput([32 * len(part) for part in parts], [sum(part) for part in parts])
    assert cut_up == pytest.approx(whole, rel=1e-12)


@given(st.permutations(range(4)))
@settings(max_examples=12, deadline=None)
def test_permuting_the_ranks_changes_nothing(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    walls = np.random.default_rng(2).uniform(0.9, 1.1, (3, 4))
    folder = tmp_path_factory.mktemp("ranks")
    found = []
    for name, table in (("a", samples(walls, 5)), ("b", samples(walls[:, order], 5))):
        pq.write_table(table.cast(SAMPLE_SCHEMA), folder / name)
        found.append(reduce_samples(folder / name, 4))
    assert found[0].blocks == found[1].blocks
    assert found[0].percentiles == pytest.approx(found[1].percentiles)


@given(st.floats(1e-3, 1e3))
@settings(max_examples=8, deadline=None)
def test_scaling_all_times_scales_times_and_leaves_ratios(tmp_path_factory: pytest.TempPathFactory, c: float) -> None:
    home = tmp_path_factory.mktemp("times")
    plant(home / "a", smoke()[:6], launches=2, rounds=2)
    blocks = library.load(home / "a")
    scaled = blocks.assign(wall_s=blocks["wall_s"] * c, step_time_s=blocks["step_time_s"] * c)
    for one, other in zip(library.compare(blocks)["ratio"], library.compare(scaled)["ratio"], strict=True):
        assert (other.value, other.low, other.high) == pytest.approx((one.value, one.low, one.high), rel=1e-9)
    one, other = library.scaling(blocks), library.scaling(scaled)
    for a, b in zip(one["step_time_s"], other["step_time_s"], strict=True):
        assert b.value == pytest.approx(a.value * c, rel=1e-9)
    for a, b in zip(one["throughput"], other["throughput"], strict=True):
        assert b.value == pytest.approx(a.value / c, rel=1e-9)
    for a, b in zip(one["efficiency_local"], other["efficiency_local"], strict=True):
        assert b.value == pytest.approx(a.value, rel=1e-9)


def test_shuffled_rows_of_a_file_change_nothing(tmp_path: Path) -> None:
    table = samples(np.random.default_rng(3).uniform(0.9, 1.1, (3, 2)), 5).cast(SAMPLE_SCHEMA)
    shuffled = table.take(pa.array(np.random.default_rng(4).permutation(len(table))))
    for name, one in (("a", table), ("b", shuffled)):
        pq.write_table(one, tmp_path / name)
    assert reduce_samples(tmp_path / "a", 2) == reduce_samples(tmp_path / "b", 2)
