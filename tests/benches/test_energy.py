"""Counters of energy: processor packages as Linux shows them, GPUs as NVML does, and none where neither tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benches import energy, nvml
from benches.energy import Counter, Energy
from benches.load import Meter
from benches.nvml import Gpu

RANGE_UJ = 262_143_328_850


def zone(powercap: Path, name: str, what: str, count: int = 0) -> Path:
    folder = powercap / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{what}\n")
    (folder / "energy_uj").write_text(f"{count}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return folder


def test_packages_are_counted_once_and_nothing_besides(tmp_path: Path) -> None:
    packages = [zone(tmp_path, f"intel-rapl:{number}", f"package-{number}") for number in range(2)]
    parts = [zone(tmp_path, "intel-rapl:0:0", "core"), zone(tmp_path, "intel-rapl:2", "psys")]
    used = Energy(energy.of_packages(tmp_path))
    for folder in (*packages, *parts):
        (folder / "energy_uj").write_text("1500000\n")
    assert used.joules() == pytest.approx(3.0)


def test_a_counter_that_started_again_has_not_run_backwards(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 999_999)
    used = Energy(energy.of_packages(tmp_path))
    (folder / "energy_uj").write_text("1000000\n")
    assert used.joules() == pytest.approx(2.0)


@given(st.integers(0, RANGE_UJ), st.integers(0, RANGE_UJ))
def test_joules_are_those_of_less_than_one_turn(start: int, used: int) -> None:
    counter = Counter(lambda: 0, 1e-6, RANGE_UJ)
    assert counter.joules(start, (start + used) % (RANGE_UJ + 1)) == pytest.approx(used * 1e-6)


@pytest.mark.parametrize("fault", ["none", "no count", "no number"])
def test_without_a_counter_nothing_is_said(tmp_path: Path, fault: str) -> None:
    if fault != "none":
        zone(tmp_path, "intel-rapl:0", "package-0")
        folder = zone(tmp_path, "intel-rapl:1", "package-1")
        (folder / "energy_uj").unlink() if fault == "no count" else (folder / "energy_uj").write_text("?")
    assert energy.of_packages(tmp_path) == (), "half of a host is no host"
    assert Energy(()).joules() is None


class Refused(Exception):
    """In the place of pynvml.NVMLError."""


def driver(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> list[int]:
    """A pynvml whose one GPU has UUID GPU-1; its count, in mJ."""
    count = [5_000]

    def handle(uuid: str) -> str:
        if uuid != "GPU-1":
            raise Refused
        return uuid

    def used(_: str) -> int:
        if fails == "count":
            raise Refused
        return count[0]

    def start() -> None:
        if fails == "driver":
            raise Refused

    def held(_: str, policy: int) -> SimpleNamespace:
        if fails == "clocks":
            raise Refused
        return SimpleNamespace(violationTime=count[0] * 10**6 * (1 + policy))

    module = SimpleNamespace(
        NVML_PERF_POLICY_POWER=0,
        NVML_PERF_POLICY_THERMAL=1,
        nvmlInit=start,
        nvmlDeviceGetViolationStatus=held,
        nvmlDeviceGetComputeRunningProcesses=lambda _: ["one", "two"],
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetTotalEnergyConsumption=used,
        NVMLError=Refused,
        __spec__=SimpleNamespace(name="pynvml"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)  # type: ignore[arg-type]
    return count


def test_a_gpu_counts_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    count = driver(monkeypatch)
    used = Energy(energy.of_gpu(Gpu("GPU-1")))
    count[0] += 2_500
    assert used.joules() == pytest.approx(2.5)


@pytest.mark.parametrize(("uuid", "fails"), [("GPU-1", "driver"), ("GPU-1", "count"), ("MIG-1", "")])
def test_a_gpu_that_does_not_tell_has_no_counter(monkeypatch: pytest.MonkeyPatch, uuid: str, fails: str) -> None:
    driver(monkeypatch, fails)
    assert energy.of_gpu(Gpu(uuid)) == ()


def test_no_pynvml_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy.of_gpu(Gpu("GPU-1")) == ()


def test_a_block_holds_what_was_used_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([10, 17])
    monkeypatch.setattr("benches.load.counters", lambda _: (Counter(lambda: next(counts), 1.0),))
    assert Meter(torch.device("cpu")).read().energy_j == 7.0


def test_a_block_holds_what_its_gpu_went_through(monkeypatch: pytest.MonkeyPatch) -> None:
    count = driver(monkeypatch)
    gpu = Gpu("GPU-1")
    for module in ("load", "energy"):
        monkeypatch.setattr(f"benches.{module}.gpu_of", lambda _: gpu)
    energy.counters.cache_clear()
    meter = Meter(torch.device("cuda", 7))
    count[0] += 300
    load = meter.read()
    energy.counters.cache_clear()
    assert (load.gpu_processes, load.gpu_held_back_s) == (2, pytest.approx(0.6)), "heat counts twice as fast as power"
    assert load.energy_j == pytest.approx(0.3)


def test_what_a_gpu_does_not_tell_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, "clocks")
    assert (Gpu("GPU-1").processes(), Gpu("GPU-1").held_back_s()) == (2, None)
    assert (Gpu("GPU-2").processes(), Gpu("GPU-2").held_back_s()) == (None, None)
    assert nvml.gpu_of(torch.device("cpu")) is None


def test_the_work_of_a_loader_is_ones_own() -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"
    meters = [Meter(torch.device("cpu"), children=children) for children in (True, False)]
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        worker.stdout.readline()
        with_child, alone = (meter.read().own_s for meter in meters)
        worker.kill()
    assert with_child - alone >= 0.4
