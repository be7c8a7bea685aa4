"""The timed loop: what is kept, what is not, and that nothing but the steps happens inside a block."""

from __future__ import annotations

import gc

import pytest
import torch

from benches import loop
from benches.engines.base import Engine
from benches.loop import Samples, Timer


class OneRank:
    """As much of an engine as the loop uses."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor, 2 * tensor]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that advances only when a step says so."""
    now = [100.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    return now


def timer_of(clock: list[float], seconds: dict[int, float], prepared: list[tuple[int, int]]) -> Timer:
    def step(number: int) -> None:
        assert not gc.isenabled()
        clock[0] += seconds.get(number, 0.5)

    engine: Engine = OneRank()  # type: ignore[assignment]
    return Timer(engine, step, lambda first, steps: prepared.append((first, steps)))


def rows(samples: Samples) -> list[tuple[float, ...]]:
    return [tuple(row) for row in samples.tensor().tolist()]


def test_warm_up_and_blocks_are_kept_apart(clock: list[float]) -> None:
    prepared: list[tuple[int, int]] = []
    timer = timer_of(clock, {0: 3.0, 10: 1.0, 11: 2.0}, prepared)
    assert timer.warm_up(10, lambda: True) is None
    assert timer.run_block(0, 3) == pytest.approx(3.5)
    warmup, step, block = (Samples.KINDS.index(kind) for kind in ("warmup", "step", "block"))
    assert rows(timer.samples)[0] == (warmup, -1, 0, 0.0, 3.0)
    assert rows(timer.samples)[9] == (warmup, -1, 9, 7.0, 0.5)
    assert rows(timer.samples)[10:] == [
        (step, 0, 0, 7.5, 1.0),
        (step, 0, 1, 8.5, 2.0),
        (step, 0, 2, 10.5, 0.5),
        (block, 0, -1, 7.5, 3.5),
    ]
    assert prepared == [(0, 10), (10, 3)]
    assert gc.isenabled()


def test_all_ranks_count_steps_by_the_slowest_one(clock: list[float]) -> None:
    timer = timer_of(clock, {0: 30.0}, [])
    timer.warm_up(10, lambda: True)
    assert [timer.steps_in(seconds) for seconds in (0.01, 1.0, 1.01, 5.0)] == [1, 1, 2, 5]


def test_warm_up_waits_for_the_engine(clock: list[float]) -> None:
    timer = timer_of(clock, {}, [])
    assert timer.warm_up(10, lambda: timer.next_step >= 14) is None
    assert timer.next_step == 14


def test_warm_up_gives_up_with_a_warning(clock: list[float]) -> None:
    timer = timer_of(clock, {}, [])
    assert "50 warm-up steps" in str(timer.warm_up(10, lambda: False))
    assert timer.next_step == loop.MOST_WARMUP_STEPS


def test_collection_comes_back_after_a_failed_step() -> None:
    def step(number: int) -> None:
        raise ValueError("planted")

    engine: Engine = OneRank()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="planted"):
        Timer(engine, step, lambda first, steps: None).run_block(0, 1)
    assert gc.isenabled()


def test_the_clock_starts_behind_the_untimed_steps_and_they_behind_the_barrier() -> None:
    done: list[str] = []

    class Told(OneRank):
        def barrier(self) -> None:
            done.append("barrier")

    class Marks(loop.HostClock):
        def mark(self, index: int) -> None:
            super().mark(index)
            done.append("mark")

    engine: Engine = Told()  # type: ignore[assignment]
    timer = Timer(engine, lambda number: done.append("step"), lambda first, steps: None)
    timer.clock = Marks()
    timer.run_block(0, 2, untimed=3)
    assert done == ["barrier", *["step"] * 3, "mark", *["step", "mark"] * 2, "barrier"]
