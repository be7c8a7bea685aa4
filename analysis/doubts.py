"""Doubts about a study in words, each with its number and a remedy where there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from analysis import compare, fairness, marks, stats, table
from analysis.rows import Row
from analysis.table import Records


def warnings(
    records: Records, rows: list[Row], launches: dict[int, pd.DataFrame], references: dict[int, int]
) -> Iterator[str]:
    """One line each. launches: of each contestant; references: place of the reference of each that is ranked."""
    ranked = [row for row in rows if row.ranked]
    yield from _core_warnings(ranked, launches)
    if {row.world_size for row in ranked} - {1} == {2}:
        yield "world size 2 only: gloo and MPI use other algorithms there than for more ranks; infer no scaling from it"
    if any("provisional" in row.marks for row in ranked):
        yield f"fewer than {stats.PROVISIONAL_BELOW} launches: verdicts are provisional; raise study.launches"
    yield from _reference_warnings(records, ranked, references)
    yield from fairness.differences(records)
    yield from _host_warnings(records)
    yield from _launch_warnings(records.launches.drop_duplicates(["case_id", "launch"]))
    yield from (f"left out: {problem}" for problem in records.problems)


def _launch_warnings(launches: pd.DataFrame) -> Iterator[str]:
    """What the launches themselves doubt, and how many are not there for no reason that a record gives."""
    for line, count in Counter(line for lines in launches["warnings"] for line in lines).items():
        yield f"{line} ({count} launch{'es' if count > 1 else ''})"
    ended = launches[~launches["status"].isin(["ok", "missing"])]["case_id"]
    missing = int((launches["status"].eq("missing") & ~launches["case_id"].isin(ended)).sum())
    if missing:
        yield f"{missing} launches have no record: the study is not finished; the same `ringduel run` goes on with it"


def _core_warnings(ranked: list[Row], launches: dict[int, pd.DataFrame]) -> Iterator[str]:
    cramped = {
        (row.case.cluster.ranks_per_node, int(launches[row.index]["cpus"].min()))
        for row in ranked
        if marks.no_spare_core(row.case, launches[row.index]["cpus"].min())
    }
    for ranks, cpus in sorted(cramped):
        yield f"no spare core for communication: {ranks} ranks on {cpus} cores; it takes time from compute"


def _reference_warnings(records: Records, ranked: list[Row], references: dict[int, int]) -> Iterator[str]:
    wanted = records.study.reference
    replaced = [row for row in ranked if references.get(row.index) == row.index]
    for row in replaced:
        if wanted and not compare.matches(row.contestant, wanted):
            where = f" at {table.label(row.contestant.point)}" if row.contestant.point else ""
            yield f"the reference {table.label(wanted)} was not measured{where}; {row.title} took its place"


def _host_warnings(records: Records) -> Iterator[str]:
    hosts = [header.provenance.get("host") for header in records.headers.values()]
    kinds = {f"{host.get('cpu')} with {host.get('cpus')} cores" for host in hosts if isinstance(host, dict)}
    if len(kinds) > 1:
        yield f"launches ran on different machines: {'; '.join(sorted(kinds))}"
