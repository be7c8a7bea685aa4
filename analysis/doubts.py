"""Doubts about a study in words, each with its number and a remedy where there is one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pandas as pd

from analysis import compare, disturbance, fairness, marks, stats, table, words
from analysis.estimate import Estimate
from analysis.rows import Row, Summary
from analysis.table import Records
from benches.schedule import CONTROL_COPY


def warnings(summary: Summary, launches: dict[int, pd.DataFrame]) -> Iterator[str]:
    """One line each. launches: the main ones of each contestant."""
    records, ranked = summary.records, [row for row in summary.rows if row.ranked]
    yield from _core_warnings(ranked, launches)
    if {row.world_size for row in ranked} - {1} == {2}:
        yield (
            "world size 2 only: gloo and MPI use other algorithms there than for more ranks; infer no scaling from it, "
            "and measure other sizes too: cluster.ranks_per_node, cluster.nodes"
        )
    if any("provisional" in row.marks for row in ranked):
        yield (
            f"fewer than {stats.PROVISIONAL_BELOW} launches: verdicts are provisional, and neither drift nor launches "
            "of two kinds could be seen; raise study.launches"
        )
    yield from _look_warnings(records)
    yield from _control_warnings(summary)
    yield from _apart_warnings(summary, launches)
    yield from disturbance.warnings(summary, pd.concat([*launches.values()]) if launches else pd.DataFrame())
    yield from _reference_warnings(records, ranked, summary.references)
    yield from fairness.differences(records)
    yield from _host_warnings(records)
    yield from _launch_warnings(records.launches.drop_duplicates(["key", "launch"]))
    yield from (f"left out: {problem}" for problem in records.problems)


def _look_warnings(records: Records) -> Iterator[str]:
    done, looks = table.main_launches(records), records.study.looks
    if len(looks) > 1 and done and done not in looks:
        reached = next((look for look in looks if look > done), looks[-1])
        yield (
            f"{done} launches, and the study is judged after {' or '.join(map(str, looks))}: a verdict in between is "
            f"one look more than its level allows for; the same `ringduel run` goes on to {reached}"
        )


def _control_warnings(summary: Summary) -> Iterator[str]:
    for control in summary.controls:
        ratio, name = control.comparison.ratio, summary.at(control.comparison.b).title
        margin = f"{control.margin * 100:g} %"
        if not control.established:
            more = _more(ratio, control.margin)
            yield (
                f"noise floor not established: the A/A control of {name} is known to "
                f"{words.half_width(control.half_width)} only, the margin is {margin}; raise study.launches ({more}) "
                f"or study.margin"
            )
        if control.state == "suspicious":
            yield (
                f"the A/A control of {name} differs by {words.interval(ratio)} at {ratio.level * 100:g} %: a further "
                f"set of launches is to check that; the same `ringduel run` goes on with it"
            )
        if control.state == "confirmed":
            yield (
                f"the A/A control of {name} differs by {words.interval(ratio)}, and further launches confirm it: "
                f"verdicts that {words.half_width(control.floor)} could undo are inconclusive, the others stand; look "
                f"for what tells two copies apart: cores, memory, place in the round"
            )
    if any(row.contestant.copy == CONTROL_COPY for row in summary.copies) and not summary.controls:
        yield "no A/A control: its launches failed, so the noise floor is not known; see failures"


def _apart_warnings(summary: Summary, launches: dict[int, pd.DataFrame]) -> Iterator[str]:
    """Pairs of one heat whose launches were not alive together: one ran alone, again or for want of memory."""
    beside = {place: own[own["usable"]].set_index("launch")["beside"] for place, own in launches.items()}
    if not any(len(keys) for own in beside.values() for keys in own):
        return
    for pair in summary.comparisons:
        a, b = summary.at(pair.a), summary.at(pair.b)
        if a.contestant.heat != b.contestant.heat or not {pair.a, pair.b} <= set(beside):
            continue
        common = beside[pair.a].index.intersection(beside[pair.b].index)
        apart = sum(a.contestant.key not in beside[pair.b][launch] for launch in common)
        if apart:
            yield (
                f"{a.title} and {b.title} were not alive together in {apart} of {len(common)} launches (one ran alone, "
                "again or for want of memory): what drifted in between is in their ratio"
            )


def _more(ratio: Estimate, margin: float) -> str:
    """How many launches would make the control's interval as narrow as the margin."""
    if not math.isfinite(ratio.high):
        return "two launches are the least"
    needed = stats.launches_for(ratio, math.log1p(margin))
    return f"about {needed} launches would do" if needed else f"over {stats.MOST_LAUNCHES} launches would be needed"


def _launch_warnings(launches: pd.DataFrame) -> Iterator[str]:
    """What the launches themselves doubt, and how many are not there for no reason that a record gives."""
    for line, count in Counter(line for lines in launches["warnings"] for line in lines).items():
        yield f"{line} ({count} launch{'es' if count > 1 else ''})"
    ended = launches[~launches["status"].isin(["ok", "missing"])]["key"]
    missing = int((launches["status"].eq("missing") & ~launches["key"].isin(ended)).sum())
    if missing:
        yield f"{missing} launches have no record: the study is not finished; the same `ringduel run` goes on with it"


def _core_warnings(ranked: list[Row], launches: dict[int, pd.DataFrame]) -> Iterator[str]:
    cramped = {
        (row.case.cluster.ranks_on_a_machine, int(launches[row.index]["cpus"].min()))
        for row in ranked
        if marks.no_spare_core(row.case, launches[row.index]["cpus"].min())
    }
    for ranks, cpus in sorted(cramped):
        yield (
            f"no spare core for communication: {ranks} ranks on {cpus} cores; it takes time from compute; take fewer "
            "ranks a host, or one with two cores a rank"
        )


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
