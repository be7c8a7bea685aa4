"""Results of which only the summary is known, such as published tables, in the columns of `tidy.COLUMNS`.

A row becomes one launch of one block of one step, so every function of the library takes it; without replicates no
Estimate of it has an interval. Such rows are for checks and context: they were not measured by Ringduel.
"""

from __future__ import annotations

import pandas as pd

NEEDED = ("model", "name", "engine", "world_size", "throughput")
"""Columns of a summary. throughput: samples a second of the whole job."""
OTHER = {
    "transport": "",
    "nodes": 1,
    "per_rank_batch": 1,
    "sample": "sample",
    "source": "literature",
    "margin": 0.02,
    "looks": 1,
}
"""Further columns and what they are where they are missing."""


def tidy(summary: pd.DataFrame) -> pd.DataFrame:
    """One row a row of `summary`, which has NEEDED and may have OTHER.

    Rows of one model, name and source are one family of weak scaling; a row of the engine `local` is the bare model of
    all rows of its model and source. Raises ValueError for a column that is missing or a throughput not above 0.
    """
    missing = [name for name in NEEDED if name not in summary.columns]
    if missing:
        raise ValueError(f"summary: no column {', '.join(missing)}")
    if not (summary["throughput"] > 0).all():
        raise ValueError("summary: a throughput is not above 0")
    found = summary.reset_index(drop=True)
    for name, value in OTHER.items():
        found[name] = summary[name].to_numpy() if name in summary.columns else value
    family = found["source"] + "/" + found["model"]
    samples = found["per_rank_batch"] * found["world_size"]
    made: pd.DataFrame = found.assign(
        study=found["source"],
        contestant=range(len(found)),
        point="",
        cell=[f"{e}/{t}" if t else e for e, t in zip(found["engine"], found["transport"], strict=True)],
        weak=family + "/" + found["name"],
        local_weak=family,
        strong=[f"{name}/{k}" for k, name in enumerate(family)],
        local_strong="",
        steps=1,
        samples=samples,
        wall_s=samples / found["throughput"],
        step_time_s=samples / found["throughput"],
        **dict.fromkeys(("copy", "heat", "launch", "block"), 0),
        **dict.fromkeys(("at", "marks", "machine", "case_id"), ""),
    )
    del made["source"]
    return made
