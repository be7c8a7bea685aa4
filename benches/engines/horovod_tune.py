"""Horovod's own autotuner: it tries points in its background thread while steps are taken, and then keeps the best.

Only the two settings that it searches by Gaussian process vary here; its switches (response cache, hierarchical and
torus operations) stay as the case has them. Source: horovod/common/parameter_manager.cc (0.28.1).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches.engines.base import Engine
from benches.spec import HorovodSettings

SAMPLES = 5
"""Of each point; `ParameterManager::SAMPLES`, of which Horovod takes the median."""
WARMUPS, POINTS = 3, 21
"""Points thrown away, and points tried: DEFAULT_WARMUPS, and one more than DEFAULT_BAYES_OPT_MAX_SAMPLES."""
SPARE = 6
"""Points more until it counts as stuck: a sample's first step may fall into the point before."""
SEARCHED = "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"
"""What stands in the environment at `init` is not searched."""


class Autotuner:
    """The search of one launch. Rank 0 alone decides, and knows where it stands, from Horovod's log."""

    def __init__(self, settings: HorovodSettings) -> None:
        self.steps_per_point = SAMPLES * settings.autotune_steps_per_sample + 1
        self._folder = tempfile.TemporaryDirectory(prefix="ringduel-autotune-")
        self._log = Path(self._folder.name) / "log.csv"
        self.variables = {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": str(WARMUPS),
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": str(settings.autotune_steps_per_sample),
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(POINTS - 1),
            # A switch that would be tried too, which no all-reduce heeds.
            "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        }
        self.log_variable = {"HOROVOD_AUTOTUNE_LOG": str(self._log)}

    def run(self, engine: Engine, steps: Callable[[int], None]) -> None:
        """Take steps until the best point is kept. Collective. Raises RuntimeError when that does not come."""
        for _ in range(WARMUPS + POINTS + SPARE):
            steps(self.steps_per_point)
            if engine.gather_json(self.best() is not None)[0]:
                return
        points = max(len(self._points()) - 1, 0)
        raise RuntimeError(
            f"horovod.autotune=true: Horovod had tried {points} of {POINTS} points when it should be done"
        )

    def best(self) -> dict[str, float] | None:
        """The settings that Horovod keeps; None while it searches, and on other ranks than the first."""
        points = self._points()
        if len(points) <= POINTS:
            return None
        *_, cycle, fusion, _score = points[POINTS].split(",")
        return {"fusion_threshold_mb": float(fusion), "cycle_time_ms": float(cycle)}

    def _points(self) -> list[str]:
        """Lines of the log, whole ones: each point that was tried with its score, and at last the best again."""
        text = self._log.read_text() if self._log.exists() else ""
        return text.splitlines()[1 : text.count("\n")]

    def describe(self) -> dict[str, Any]:
        """What it kept, for the record of rank 0."""
        return {"autotuned": self.best()}
