"""The answer in one sentence a model and world size: which is fastest, by how much, how sure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis import words
from analysis.compare import Comparison
from analysis.rows import Row, Summary

MOST_NAMED = 4
"""Contestants that one sentence names; the rest is counted."""


def headlines(summary: Summary) -> list[str]:
    """One sentence a table and world size, the largest first; one rank only where there is no larger world."""
    found = []
    for group in summary.groups():
        sizes = by_world_size(group)
        found += [rows for rows in sizes[::-1] if rows[0].world_size > 1 or len(sizes) == 1]
    return [f"{subject(rows)}: {finding(summary, rows)}" for rows in found]


def by_world_size(group: Sequence[Row]) -> list[list[Row]]:
    """Rows of one table, split by world size, the smallest first."""
    sizes = sorted({row.world_size for row in group})
    return [[row for row in group if row.world_size == size] for size in sizes]


def curve_panels(summary: Summary) -> list[list[Row]]:
    """Rows whose all-reduce was timed, by table and world size; a shared case stands once."""
    panels = [rows for group in summary.groups() for rows in by_world_size(group)]
    timed = [list({row.case_id: row for row in rows if row.curve}.values()) for rows in panels]
    return [rows for rows in timed if rows]


def subject(rows: Sequence[Row]) -> str:
    """`resnet18, 2 ranks`."""
    parts = [words.clean(part, 60) for part in rows[0].group if part]
    return ", ".join([*parts, words.ranks(rows[0].world_size)])


def finding(summary: Summary, rows: Sequence[Row]) -> str:
    """`ddp/gloo is fastest; horovod/mpi 3.1 % slower (provisional, 3 launches each)`."""
    ranked = [row for row in rows if row.step_time_s]
    unranked = [row.title for row in rows if not row.step_time_s]
    tail = f"; not ranked: {_named(unranked)}" if unranked else ""
    if not ranked:
        return f"nothing was measured{tail}"
    rivals = sorted((found for row in ranked if (found := summary.against_reference(row))), key=lambda c: c.ratio.value)
    counts = [row.step_time_s.n for row in ranked if row.step_time_s]
    doubt = ("provisional, " if rivals and any(rival.provisional for rival in rivals) else "") + words.launches(counts)
    if not rivals:
        return f"{_alone(ranked)} ({doubt}){tail}"
    return f"{_standing(summary, rivals)} ({doubt}){tail}"


def _alone(ranked: Sequence[Row]) -> str:
    times = (f"{row.title} {words.significant(row.step_time_s.value * 1e3)} ms" for row in ranked if row.step_time_s)
    return f"nothing to compare; {_named(list(times))} a step"


def _standing(summary: Summary, rivals: Sequence[Comparison]) -> str:
    titles = {rival.a: summary.rows[rival.a].title for rival in rivals}
    reference = summary.rows[rivals[0].b].title
    open_ = [rival for rival in rivals if rival.verdict == "inconclusive"]
    faster = [rival for rival in rivals if rival.verdict == "faster"]
    changes = [f"{titles[rival.a]} {words.percent(rival.ratio.value)}" for rival in rivals]
    if len(open_) == len(rivals):
        return f"no verdict yet; so far, against {reference}: {_named(changes)}"
    if all(rival.verdict == "slower" for rival in rivals):
        return f"{reference} is fastest; {_named(changes)}"
    if len(faster) == 1 and all(rival.verdict == "slower" for rival in rivals if rival is not faster[0]):
        rest = f"; {_named(changes[1:])}" if changes[1:] else ""
        return f"{titles[faster[0].a]} is fastest, {words.percent(faster[0].ratio.value)} than {reference}{rest}"
    return f"against {reference}: {_named(list(_each(rivals, titles)))}"


def _each(rivals: Sequence[Comparison], titles: dict[int, str]) -> Iterator[str]:
    return (f"{titles[rival.a]} {words.verdict(rival, doubt=False)}" for rival in rivals)


def _named(items: Sequence[str]) -> str:
    more = len(items) - MOST_NAMED
    return "; ".join(items[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
