"""A rank's GPU as NVML knows it: its energy, who uses it, and for how long power or heat held its clock down."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

NANO = 1e-9
HOLDS = ("NVML_PERF_POLICY_POWER", "NVML_PERF_POLICY_THERMAL")
"""What may hold a clock below the one that applications are given."""


class Gpu:
    """Answers are None where nvidia-ml-py, the driver or the GPU does not tell."""

    def __init__(self, uuid: str) -> None:
        """uuid: such as GPU-…; a part of a GPU (MIG) has none that NVML would answer for."""
        self._nvml: Any = import_module("pynvml") if find_spec("pynvml") else None
        self._handle = self._open(uuid)

    def millijoules(self) -> int | None:
        """Used since the driver was loaded; from Volta on."""
        found: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return found

    def processes(self) -> int | None:
        """That compute on it, as far as this container sees them."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else len(found)

    def held_back_s(self) -> float | None:
        """Seconds since the driver was loaded in which power or heat, whichever is more, held its clock down."""
        found = [self._ask("nvmlDeviceGetViolationStatus", getattr(self._nvml, hold, None)) for hold in HOLDS]
        return None if None in found else max(float(one.violationTime) for one in found) * NANO

    def _open(self, uuid: str) -> Any:
        if self._nvml is None:
            return None
        try:
            self._nvml.nvmlInit()
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError:
            return None

    def _ask(self, question: str, *arguments: object) -> Any:
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, question)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


@cache
def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU of a rank; None on the CPU."""
    return Gpu(f"GPU-{torch.cuda.get_device_properties(device).uuid}") if device.type == "cuda" else None
