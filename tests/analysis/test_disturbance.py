"""Warnings of drift, modes, load and clock: each finds what is planted, and hardly ever speaks of ordinary noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import HOST, Plant, header, make_case, plant, samples

from analysis import summary, table, trends
from analysis.load import TICK_S
from benches import record
from benches.record import Load

Make = Callable[..., Path]
CASE = make_case("ddp", "gloo", 2)


def load(busy: float = 1.0, steal: float = 0.0, mhz: float | None = 3000.0) -> Load:
    """Of a block of one second on 8 cores, in which each of two ranks took half a second."""
    return Load(wall_s=1.0, busy_s=busy, steal_s=steal, own_s=0.5, mhz=mhz)


def warned(folder: Path, step_s: list[float], loads: list[Load] | None = None) -> list[str]:
    """Warnings of a study of one contestant, a launch for each step time."""
    plant(folder, [Plant(CASE, 1.0, launches=0)], launches=len(step_s))
    for launch, seconds in enumerate(step_s):
        own: dict[str, Any] = {"load": [[loads[launch]] * 2] * 2} if loads else {}
        walls = np.full((2, 2), seconds * 20)
        record.write(folder / "launches" / CASE.id / str(launch), header(CASE, launch, **own), samples(walls, 20))
    return summary.reduce(table.read(folder)).warnings


def about(found: list[str], *words: str) -> list[str]:
    return [line for line in found if any(word in line for word in words)]


SPOKEN = ("drift:", "two groups", "of the cores during the blocks", "the clock fell")


def test_a_calm_study_draws_no_such_warning(tmp_path: Path) -> None:
    calm = [0.05, 0.0501, 0.0499, 0.05, 0.0502, 0.0498]
    assert about(warned(tmp_path, calm, [load()] * 6), *SPOKEN) == []


def test_drift_is_told_with_its_size(tmp_path: Path) -> None:
    (line,) = about(warned(tmp_path, [0.05 * 1.02**k for k in range(6)]), *SPOKEN)
    assert line.startswith("drift: step times moved by +10 %")


def test_two_groups_are_told_with_their_times(tmp_path: Path) -> None:
    (line,) = about(warned(tmp_path, [0.05, 0.0601, 0.0501, 0.06, 0.0499, 0.0599]), *SPOKEN)
    assert "launches of ddp/gloo fall in two groups, 3 at 50.0 ms and 3 at 60.0 ms" in line


def test_foreign_load_and_steal_are_told_with_their_share(tmp_path: Path) -> None:
    loads = [load()] * 3 + [load(busy=1.8)] + [load(busy=1.4, steal=0.4)] * 2
    found = about(warned(tmp_path, [0.05] * 6, loads), *SPOKEN)
    assert HOST["cpus"] == 8
    assert found[0].startswith(
        "other processes used up to 10 % of the cores during the blocks of 1 of 6 launches (most in launch 3"
    )
    assert found[1].startswith("other guests of the machine took up to 5 % of the cores during the blocks of 2 of 6")


def test_ranks_of_several_hosts_are_told_apart(tmp_path: Path) -> None:
    """Each host is busy with its own rank only; taken together their work would hide 0.5 s of foreign load."""
    plant(tmp_path, [Plant(CASE, 1.0, launches=0)], launches=1)
    ranks = [{"host": name, "threads": 1} for name in ("node1", "node2")]
    changes = {"load": [[load(busy=1.0)], [load(busy=0.5)]], "provenance": {"host": HOST, "ranks": ranks}}
    record.write(tmp_path / "launches" / CASE.id / "0", header(CASE, 0, **changes), samples(np.ones((1, 2)), 20))
    assert table.read(tmp_path).launches["foreign_share"].tolist() == pytest.approx([(0.5 - 2 * TICK_S) / 8])


def test_rounding_of_ticks_is_no_foreign_load(tmp_path: Path) -> None:
    """Blocks of 20 ms in which the host and both ranks are a tick off."""
    short = Load(wall_s=0.02, busy_s=0.03, steal_s=0.0, own_s=0.0)
    assert about(warned(tmp_path, [0.05] * 6, [short] * 6), *SPOKEN) == []


def test_a_falling_clock_is_told(tmp_path: Path) -> None:
    found = warned(tmp_path, [0.05] * 6, [load(mhz=3000.0 - 60 * k) for k in range(6)])
    assert about(found, *SPOKEN)[0].startswith("the clock fell from 3000 to 2700 MHz")


def test_old_records_without_load_are_silent(tmp_path: Path) -> None:
    assert about(warned(tmp_path, [0.05] * 6), *SPOKEN) == []


KINDS = ["normal", "laplace", "uniform"]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 6, 9, 14, 20]), st.sampled_from(KINDS))
def test_stationary_launches_raise_few_alarms(seed: int, n: int, kind: str) -> None:
    """The rates hold for tails heavier and lighter than the normal ones; 300 studies each, so 5 % with its error."""
    random = np.random.default_rng(seed)
    values = getattr(random, kind)(size=(300, n))
    alarms = [trends.drift(v) is not None or trends.two_groups(v, trends.LEVEL) is not None for v in values]
    assert np.mean(alarms) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_the_test_for_two_groups_keeps_its_level() -> None:
    random = np.random.default_rng(5)
    for n in (6, 9, 20):
        # 1000 at 5 %: standard deviation 0.7 %.
        assert np.mean([trends.two_groups(v, 0.05) is not None for v in random.random((1000, n))]) <= 0.072


def test_one_outlier_is_no_group() -> None:
    assert trends.two_groups([1.0, 1.01, 0.99, 1.0, 1.02, 3.0], 0.01) is None


def test_a_gpu_in_use_by_others_and_one_that_is_held_back_are_told(tmp_path: Path) -> None:
    calm = {"wall_s": 1.0, "busy_s": 1.0, "steal_s": 0.0, "own_s": 0.5}
    loads = [Load(**calm, gpu_processes=1, gpu_held_back_s=0.01)] * 4
    loads += [Load(**calm, gpu_processes=3, gpu_held_back_s=0.2)] * 2
    found = about(warned(tmp_path, [0.05] * 6, loads), "on a GPU", "GPU's clock")
    assert found[0].startswith("up to 2 other processes were on a GPU during the blocks of 2 of 6 launches")
    assert found[1].startswith(
        "power or heat held a GPU's clock down for up to 20 % of the time of the blocks of 2 of 6"
    )


def test_whoever_is_alive_together_is_no_stranger_on_a_gpu(tmp_path: Path) -> None:
    shared = Load(wall_s=1.0, busy_s=1.0, steal_s=0.0, own_s=0.5, gpu_processes=3)
    plant(tmp_path, [Plant(CASE, 1.0, launches=0)], launches=1)
    changes = {"load": [[shared]] * 2, "beside": ["a", "b"]}
    record.write(tmp_path / "launches" / CASE.id / "0", header(CASE, 0, **changes), samples(np.ones((1, 2)), 20))
    assert table.read(tmp_path).launches["gpu_strangers"].tolist() == [0.0]


def test_spikes_that_the_verdict_does_not_see_are_told(tmp_path: Path) -> None:
    """One block in five of Horovod takes half as long again: 10 % of its time, which its location hardly shows."""
    other = make_case("horovod", "gloo", 2)
    plant(tmp_path, [Plant(CASE, 1.0, launches=0), Plant(other, 1.0, launches=0)], launches=6, rounds=5)
    random = np.random.default_rng(1)
    for case, spike in ((CASE, 1.0), (other, 1.5)):
        for launch in range(6):
            walls = np.exp(random.normal(0, 0.001, (5, 2)))
            walls[launch % 5] *= spike
            record.write(tmp_path / "launches" / case.id / str(launch), header(case, launch), samples(walls, 20))
    found = summary.reduce(table.read(tmp_path))
    (line,) = about(found.warnings, "now and then")
    assert found.comparisons[0].verdict == "equivalent"
    assert line.startswith("blocks of horovod/gloo are now and then far slower than its others")
    assert "horovod/gloo takes +10 % against ddp/gloo" in line


def test_ordinary_noise_is_no_spike(tmp_path: Path) -> None:
    other = make_case("horovod", "gloo", 2)
    plant(tmp_path, [Plant(CASE, 1.0, launches=0), Plant(other, 1.0, launches=0)], launches=6, rounds=5)
    random = np.random.default_rng(2)
    for case in (CASE, other):
        for launch in range(6):
            walls = np.exp(random.normal(0, 0.1, (5, 2)))
            record.write(tmp_path / "launches" / case.id / str(launch), header(case, launch), samples(walls, 20))
    assert about(summary.reduce(table.read(tmp_path)).warnings, "now and then") == []


def test_five_launches_in_order_are_a_drift_and_four_are_not() -> None:
    assert trends.drift([1.0, 1.1, 1.2, 1.3, 1.4]) == pytest.approx(0.4)
    assert trends.drift([1.0, 1.1, 1.2, 1.3]) is None
