"""The answer in sentences: the two questions, then a sentence a model and world size, then the noise floor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis import words
from analysis.compare import Comparison
from analysis.noise import Control
from analysis.rows import Row, Summary

MOST_NAMED = 4
"""Contestants that one sentence names; the rest is counted."""


ASKED = {"default": "default against default", "best": "best against best"}


def lines(summary: Summary) -> list[str]:
    """All of the verdict, the two questions first; a subject stands before the first colon."""
    return [*answers(summary), *headlines(summary), *noise_lines(summary)]


def answers(summary: Summary) -> list[str]:
    """Of both questions, the largest world size first. One pair that answers both stands once."""
    found: dict[tuple[str, Comparison, bool], list[str]] = {}
    order = sorted(summary.questions, key=lambda q: -summary.at(q.comparison.a).world_size)
    for question in order:
        where = subject([summary.at(question.comparison.a)])
        found.setdefault((where, question.comparison, question.confirmed), []).append(ASKED[question.question])
    return [
        f"{where}, {' and '.join(asked)}: {_answer(summary, comparison)}{'' if confirmed else ', not confirmed'}"
        for (where, comparison, confirmed), asked in found.items()
    ]


def _answer(summary: Summary, found: Comparison) -> str:
    """`horovod/gloo 3.1 % slower than ddp/gloo (+1.0 … +5.2 %, 6 launches)`."""
    a, b = summary.at(found.a).title, summary.at(found.b).title
    change = words.percent(found.ratio.value)
    than = "as" if change.endswith(("the same", "as long")) else "than"
    text = {
        "slower": f"{a} {change} {than} {b}",
        "faster": f"{a} {change} {than} {b}",
        "equivalent": f"{a} equivalent to {b}",
        "inconclusive": f"no verdict yet between {a} and {b}",
    }[found.verdict]
    doubts = [*(mark for mark in found.marks), *(["provisional"] if found.provisional else [])]
    within = words.interval(found.ratio) or f"so far {words.change(found.ratio.value)}"
    return f"{text} ({', '.join([within, words.launches([found.ratio.n]).removesuffix(' each'), *doubts])})"


def noise_lines(summary: Summary) -> list[str]:
    """The A/A controls: what a copy of the reference differs by."""
    return [f"A/A control, {subject([summary.at(c.comparison.b)])}: {_noise(summary, c)}" for c in summary.controls]


def _noise(summary: Summary, control: Control) -> str:
    ratio = control.comparison.ratio
    text = f"a copy of {summary.at(control.comparison.b).title} {words.change(ratio.value)}"
    how_sure = f"{ratio.level * 100:g} %, {words.launches([ratio.n]).removesuffix(' each')}"
    told = {
        "quiet": "",
        "suspicious": "; not 1, to be checked by further launches",
        "cleared": "; not 1, but further launches did not confirm that",
        "confirmed": "; not 1, and further launches confirm it",
    }[control.state]
    floor = "" if control.established else "; noise floor not established"
    return f"{text} ({words.interval(ratio) or 'no interval'}, {how_sure}){told}{floor}"


def headlines(summary: Summary) -> list[str]:
    """One sentence a table and world size, the largest first; one rank only where there is no larger world."""
    return [f"{subject(rows)}: {finding(summary, rows)}" for rows in _shown(summary)]


def standings(summary: Summary) -> list[str]:
    """Likewise while launches are still to come: ratios with their intervals, and no verdict, for no look is due."""
    return [f"{subject(rows)}, so far: {_so_far(summary, rows)}" for rows in _shown(summary)]


def _shown(summary: Summary) -> list[list[Row]]:
    found: list[list[Row]] = []
    for group in summary.groups():
        sizes = by_world_size(group)
        found += [rows for rows in sizes[::-1] if rows[0].world_size > 1 or len(sizes) == 1]
    return found


def _so_far(summary: Summary, rows: Sequence[Row]) -> str:
    """`against ddp/gloo: horovod/mpi −15 % (−25 … −3.1 %); horovod/gloo +31 % (+4.0 … +65 %); 3 launches each`."""
    rivals = _rivals(summary, rows)
    if not rivals:
        return finding(summary, rows)
    told = [
        f"{summary.at(rival.a).title} {words.change(rival.ratio.value)} "
        f"({words.interval(rival.ratio) or 'no interval yet'})"
        for rival in rivals
    ]
    return f"against {summary.at(rivals[0].b).title}: {_named(told)}; {_launches(summary, rows)}"


def _rivals(summary: Summary, rows: Sequence[Row]) -> list[Comparison]:
    """Comparisons with the reference, the fastest first."""
    ranked = (row for row in rows if row.ranked)
    found = (comparison for row in ranked if (comparison := summary.against_reference(row)))
    return sorted(found, key=lambda comparison: comparison.ratio.value)


def _launches(summary: Summary, rows: Sequence[Row]) -> str:
    """`3 launches each, A/A ±0.4 %`."""
    counts = [row.step_time_s.n for row in rows if row.step_time_s]
    return words.launches(counts) + _floor(summary, rows)


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
    rivals = _rivals(summary, rows)
    doubt = ("provisional, " if any(rival.provisional for rival in rivals) else "") + _launches(summary, rows)
    if not rivals:
        return f"{_alone(ranked)} ({doubt}){tail}"
    return f"{_standing(summary, rivals)} ({doubt}){tail}"


def _floor(summary: Summary, rows: Sequence[Row]) -> str:
    """`, A/A ±0.4 %` where the control is of this world size."""
    control = summary.control_of(rows[0])
    if control is None or summary.at(control.comparison.b).world_size != rows[0].world_size:
        return ""
    return f", A/A {words.half_width(control.floor)}"


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
