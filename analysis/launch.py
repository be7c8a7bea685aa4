"""The record of one launch as a row and its blocks. What cannot be read is said, not raised. Seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from analysis import curve, load, marks, stats
from analysis.samples import Block, Reduced, reduce_samples
from benches.record import CURVE, HEADER, SAMPLES, SCHEMA_VERSION, Header
from benches.spec import AGAIN_FROM, CONFIRM_FROM

MAIN, AGAIN, CONFIRM = "main", "again", "confirm"

LAUNCH_COLUMNS: dict[str, str] = {
    "key": "str", "launch": "int64", "stage": "str", "status": "str", "reason": "str", "usable": "bool",
    "step_time_s": "float64", "throughput": "float64", "blocks": "int64", "duration_s": "float64", "setup_s": "float64",
    "p50_s": "float64", "p95_s": "float64", "p99_s": "float64",
    "foreign_share": "float64", "steal_share": "float64", "mhz": "float64",
    "gpu_strangers": "float64", "gpu_held_share": "float64", "power_w": "float64", "host_bound": "bool",
    "peak_memory_mb": "float64", "cpus": "float64", "parity_passed": "object", "parity_error": "float64",
    "parity_bound": "float64", "gate_s": "float64", "log_tail": "object", "warnings": "object",
    "beside": "object",
}  # fmt: skip
BLOCK_COLUMNS: dict[str, str] = {
    "key": "str", "launch": "int64", "stage": "str", "block": "int64", "steps": "int64", "samples": "int64",
    "wall_s": "float64", "step_time_s": "float64", "throughput": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One launch as it was found."""

    row: dict[str, Any]
    """LAUNCH_COLUMNS."""
    blocks: list[dict[str, Any]]
    """BLOCK_COLUMNS, one mapping a sound block."""
    curve: list[dict[str, Any]]
    """curve.COLUMNS, one mapping a size; empty where none was asked for."""
    header: Header | None
    problems: list[str]


def stage(number: int) -> str:
    """What launch `number` is for: the estimates, a second look at a suspicious A/A control, or to confirm the best."""
    return MAIN if number < AGAIN_FROM else AGAIN if number < CONFIRM_FROM else CONFIRM


def read_launch(folder: Path, key: str, case_id: str, number: int) -> Launch:
    """Read launch `number` of the contestant `key`, whose case is `case_id`, from its folder, which may be missing."""
    mine = {"key": key, "launch": number, "stage": stage(number)}
    row = dict.fromkeys(LAUNCH_COLUMNS) | mine | {"usable": False, "blocks": 0}
    row |= {"log_tail": [], "warnings": [], "beside": [], "reason": ""}
    if not (folder / HEADER).exists():
        return Launch(row | {"status": "missing"}, [], [], None, [])
    try:
        header = _read_header(folder / HEADER, case_id)
    except (OSError, ValueError) as error:
        fault = f"{HEADER} cannot be read: {' '.join(str(error).split())}"
        return Launch(row | {"status": "unreadable", "reason": fault}, [], [], None, [fault])
    row |= _header_values(header)
    found = _read_samples(folder / SAMPLES, header) if header.status == "ok" else Reduced([], {}, [])
    blocks = [mine | _block_row(block, header) for block in found.blocks]
    sizes, faults = _read_curve(folder / CURVE, header, mine)
    row |= _block_values(blocks) | found.percentiles
    row["host_bound"] = marks.host_bound(header, row["cpus"], row["step_time_s"])
    return Launch(row, blocks, sizes, header, [*found.problems, *faults])


def _read_header(path: Path, case_id: str) -> Header:
    """Raises OSError or ValueError (msgspec's errors are ValueErrors)."""
    content = msgspec.json.decode(path.read_bytes())
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema version {version}, this Ringduel reads {SCHEMA_VERSION}")
    header = msgspec.convert(content, Header)
    if header.case_id != case_id:
        raise ValueError(f"it is the record of another case, {header.case_id}")
    if header.status == "ok" and header.world_size != header.case.cluster.world_size:
        raise ValueError(f"{header.world_size} ranks ran, {header.case.cluster.world_size} were asked for")
    return header


def _header_values(header: Header) -> dict[str, Any]:
    parity = header.parity
    host = header.provenance.get("host")
    cpus = host.get("cpus") if isinstance(host, dict) else None
    cpus = cpus if isinstance(cpus, int) else None
    return {
        "status": header.status,
        "reason": header.reason or "",
        "duration_s": header.duration_s,
        "setup_s": header.setup_s,
        "peak_memory_mb": max(header.peak_memory_mb, default=None),
        "cpus": cpus,
        **load.shares(header, cpus),
        "power_w": load.power_w(header),
        "parity_passed": parity.passed if parity else None,
        "parity_error": parity.error if parity else None,
        "parity_bound": parity.bound if parity else None,
        "gate_s": parity.took_s if parity else None,
        "log_tail": header.log_tail,
        "warnings": header.warnings,
        "beside": header.beside,
    }


def _read_samples(path: Path, header: Header) -> Reduced:
    if not path.exists():
        return Reduced([], {}, [f"{SAMPLES} is missing"])
    try:
        found = reduce_samples(path, header.world_size)
    except (OSError, pa.ArrowException) as error:
        return Reduced([], {}, [f"{SAMPLES} cannot be read: {' '.join(str(error).split())}"])
    return found if found.blocks or found.problems else found._replace(problems=["no block was timed"])


def _block_row(block: Block, header: Header) -> dict[str, Any]:
    samples = block.steps * header.samples_per_step
    return {
        "samples": samples,
        "step_time_s": stats.step_time([block.steps], [block.wall_s]),
        "throughput": stats.throughput([samples], [block.wall_s]),
        **block._asdict(),
    }


def _read_curve(path: Path, header: Header, mine: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    if header.status != "ok" or not path.exists():
        return [], []
    try:
        rows, problems = curve.reduce_curve(path, header.world_size)
    except (OSError, KeyError, pa.ArrowException) as error:
        return [], [f"{CURVE} cannot be read: {' '.join(str(error).split())}"]
    return [{"key": mine["key"], "launch": mine["launch"], **row} for row in rows], problems


def _block_values(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    if not blocks:
        return {}
    steps, samples, walls = ([block[name] for block in blocks] for name in ("steps", "samples", "wall_s"))
    step_time_s, throughput = stats.step_time(steps, walls), stats.throughput(samples, walls)
    return {"usable": True, "blocks": len(blocks), "step_time_s": step_time_s, "throughput": throughput}
