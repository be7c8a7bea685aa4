"""The record of one launch as a row and its blocks. What cannot be read is said, not raised. Seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from analysis import curve, stats
from analysis.samples import reduce_samples
from benches.record import CURVE, HEADER, SAMPLES, SCHEMA_VERSION, Header

LAUNCH_COLUMNS: dict[str, str] = {
    "case_id": "str", "launch": "int64", "status": "str", "reason": "str", "usable": "bool",
    "step_time_s": "float64", "throughput": "float64", "blocks": "int64", "duration_s": "float64", "setup_s": "float64",
    "peak_memory_mb": "float64", "cpus": "float64", "parity_passed": "object", "parity_error": "float64",
    "parity_bound": "float64", "log_tail": "object", "warnings": "object",
}  # fmt: skip
BLOCK_COLUMNS: dict[str, str] = {
    "case_id": "str", "launch": "int64", "block": "int64", "steps": "int64", "samples": "int64",
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


def read_launch(folder: Path, case_id: str, number: int) -> Launch:
    """Read launch `number` of a case from its folder, which may be missing."""
    row = dict.fromkeys(LAUNCH_COLUMNS) | {"case_id": case_id, "launch": number, "usable": False, "blocks": 0}
    row |= {"log_tail": [], "warnings": [], "reason": ""}
    if not (folder / HEADER).exists():
        return Launch(row | {"status": "missing"}, [], [], None, [])
    try:
        header = _read_header(folder / HEADER, case_id)
    except (OSError, ValueError) as error:
        fault = f"{HEADER} cannot be read: {' '.join(str(error).split())}"
        return Launch(row | {"status": "unreadable", "reason": fault}, [], [], None, [fault])
    row |= _header_values(header)
    blocks, problems = _read_blocks(folder / SAMPLES, header, number) if header.status == "ok" else ([], [])
    sizes, faults = _read_curve(folder / CURVE, header, number)
    return Launch(row | _block_values(blocks), blocks, sizes, header, [*problems, *faults])


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
    return {
        "status": header.status,
        "reason": header.reason or "",
        "duration_s": header.duration_s,
        "setup_s": header.setup_s,
        "peak_memory_mb": max(header.peak_memory_mb, default=None),
        "cpus": cpus if isinstance(cpus, int) else None,
        "parity_passed": parity.passed if parity else None,
        "parity_error": parity.error if parity else None,
        "parity_bound": parity.bound if parity else None,
        "log_tail": header.log_tail,
        "warnings": header.warnings,
    }


def _read_blocks(path: Path, header: Header, number: int) -> tuple[list[dict[str, Any]], list[str]]:
    if not path.exists():
        return [], [f"{SAMPLES} is missing"]
    try:
        blocks, problems = reduce_samples(path, header.world_size)
    except (OSError, pa.ArrowException) as error:
        return [], [f"{SAMPLES} cannot be read: {' '.join(str(error).split())}"]
    rows = [
        {
            "case_id": header.case_id,
            "launch": number,
            "samples": block.steps * header.samples_per_step,
            "step_time_s": stats.step_time([block.steps], [block.wall_s]),
            "throughput": stats.throughput([block.steps * header.samples_per_step], [block.wall_s]),
            **block._asdict(),
        }
        for block in blocks
    ]
    return rows, problems or ([] if rows else ["no block was timed"])


def _read_curve(path: Path, header: Header, number: int) -> tuple[list[dict[str, Any]], list[str]]:
    if header.status != "ok" or not path.exists():
        return [], []
    try:
        rows, problems = curve.reduce_curve(path, header.world_size)
    except (OSError, KeyError, pa.ArrowException) as error:
        return [], [f"{CURVE} cannot be read: {' '.join(str(error).split())}"]
    return [{"case_id": header.case_id, "launch": number, **row} for row in rows], problems


def _block_values(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    if not blocks:
        return {}
    steps, samples, walls = ([block[name] for block in blocks] for name in ("steps", "samples", "wall_s"))
    step_time_s, throughput = stats.step_time(steps, walls), stats.throughput(samples, walls)
    return {"usable": True, "blocks": len(blocks), "step_time_s": step_time_s, "throughput": throughput}
