"""Studies as one tidy DataFrame for notebooks: one row a block, columns as COLUMNS says. Seconds, samples a second."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis import marks, scaling, table
from analysis.launch import MAIN
from analysis.rows import SHAPE_KEYS
from analysis.table import Records
from benches.errors import UserError
from benches.spec import Case

COLUMNS = {
    "study": "folder of the study",
    "machine": "CPU and cores of rank 0's host, and the device",
    "schema_version": "of the record",
    "contestant": "its place in the study; with `study` the key of a contestant",
    "name": "as the study calls it",
    "point": "values of the study's axes, key=value",
    "case_id": "hash of the case: the same in every study that ran the same",
    "copy": "0: itself; above: a copy that the driver added (A/A control, reference of a further heat)",
    "heat": "those of one heat were alive together",
    "cell": "engine/transport",
    "engine": "ddp, horovod or local",
    "transport": "gloo, mpi, nccl; empty for local",
    "model": "its name",
    "sample": "unit of throughput",
    "nodes": "hosts",
    "world_size": "ranks",
    "per_rank_batch": "items in a rank's batch",
    "at": "values of the axes besides model, nodes and ranks, key=value",
    "marks": "what a reader must know before the number, space between; see analysis.marks",
    "launch": "its number; the launch is the replicate",
    "block": "its number in the launch",
    "steps": "of the block",
    "samples": "of all ranks in the block",
    "wall_s": "seconds of the block on its slowest rank",
    "step_time_s": "wall_s ÷ steps",
    "throughput": "samples ÷ wall_s, a second",
    "weak": "family of the same engine, settings and batch a rank at every world size",
    "strong": "likewise, with the same global batch",
    "margin": "the study's, for verdicts; a fraction",
    "looks": "how often the study may be judged; its intervals allow for that",
    "local_weak": "family of the bare model with the same batch a rank",
    "local_strong": "the bare model with the same global batch",
}
"""Columns of `load` and what they mean. `point.KEY` and `settings.KEY` follow: values of axes and of sub-grids."""

CURVE_COLUMNS = {
    "bytes": "of the message",
    "seconds": "of one all-reduce on the slowest rank, the mean within the launch",
}
"""Columns of `curves` besides those of a contestant and launch in COLUMNS."""


def load(*studies: Path | str, combine: bool = False) -> pd.DataFrame:
    """Sound blocks of the main launches of all contestants that passed the parity gate; COLUMNS.

    Raises UserError where a folder is no study, or where machines or schema versions differ and `combine` is false.
    """
    return _joined([tidy(table.read(Path(study))) for study in studies], combine)


def curves(*studies: Path | str, combine: bool = False) -> pd.DataFrame:
    """The all-reduce itself, one row a contestant, launch and size; CURVE_COLUMNS. Raises UserError as `load` does."""
    return _joined([curves_of(table.read(Path(study))) for study in studies], combine)


def tidy(records: Records) -> pd.DataFrame:
    """`load` of records that were read already."""
    launches = records.launches
    refused = set(launches.loc[launches["parity_passed"].isin([False]), "contestant"])
    blocks = records.blocks
    return _with_study(records, blocks[blocks["stage"].eq(MAIN) & ~blocks["contestant"].isin(refused)])


def curves_of(records: Records) -> pd.DataFrame:
    """`curves` of records that were read already."""
    return _with_study(records, records.curves)


def _joined(frames: list[pd.DataFrame], combine: bool) -> pd.DataFrame:
    """Raises UserError where they should not be joined unasked."""
    if not frames:
        raise UserError("study: none given; give a study's folder")
    for column, what in (("machine", "machines"), ("schema_version", "schema versions")):
        values = sorted({str(value) for frame in frames for value in frame[column].unique()})
        if len(values) > 1 and not combine and len(frames) > 1:
            raise UserError(f"combine=False: {what} differ ({'; '.join(values)}); combine=True joins them all the same")
    found: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return found


def _with_study(records: Records, frame: pd.DataFrame) -> pd.DataFrame:
    rows = {place: _of(records, place) for place in range(len(records.case_ids))}
    families = ["weak", "strong", "local_weak", "local_strong"]
    columns = ["machine", "schema_version", "sample", "nodes", "at", "marks", "margin", "looks", *families]
    told = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    found: pd.DataFrame = frame.merge(told, left_on="contestant", right_index=True)
    found.insert(0, "study", str(records.folder))
    return found


def _of(records: Records, place: int) -> list[object]:
    one = records.study.contestants[place]
    case: Case = one.case
    launches = records.launches[records.launches["contestant"].eq(place)]
    header = records.headers.get(records.keys[place])
    families = dict(zip(("local_weak", "weak", "local_strong", "strong"), scaling.families(case), strict=True))
    return [
        machine(records, place),
        header.schema_version if header else None,
        case.model.sample,
        case.cluster.nodes,
        table.label({key: value for key, value in one.point.items() if key not in SHAPE_KEYS}),
        " ".join(marks.of_launches(case, launches)),
        records.study.margin,
        len(records.study.looks),
        *(families[name] for name in ("weak", "strong", "local_weak", "local_strong")),
    ]


def machine(records: Records, place: int) -> str:
    """`AMD EPYC, 8 cores` and the accelerator where it is another; empty where no record says."""
    header = records.headers.get(records.keys[place])
    host = header.provenance.get("host") if header else None
    if header is None or not isinstance(host, dict):
        return ""
    text = f"{host.get('cpu')}, {host.get('cpus')} cores"
    return text if header.device in ("", host.get("cpu")) else f"{text}, {header.device}"
