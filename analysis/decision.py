"""Which engine, by how much, how sure, and what would change the answer. Ratios are of step times."""

from __future__ import annotations

import math
from collections.abc import Iterator

from analysis import headline, stats, words
from analysis.compare import Comparison
from analysis.grids import Column, Grid
from analysis.questions import Question
from analysis.rows import Row, Summary

HEAD = ("model", "ranks", "question", "answer", "step time", "interval", "how sure")


def grid(summary: Summary) -> Grid:
    """One row a model, world size and question; the largest world first."""
    order = sorted(summary.questions, key=lambda q: (-summary.at(q.comparison.a).world_size, q.question == "best"))
    columns = [Column(title, "right" if title == "ranks" else "left") for title in HEAD]
    return Grid("Which is faster", columns, [_cells(summary, question) for question in order])


def _cells(summary: Summary, question: Question) -> list[str]:
    found = question.comparison
    a, b = summary.at(found.a), summary.at(found.b)
    return [
        ", ".join(words.clean(part, 60) for part in a.group if part),
        str(a.world_size),
        headline.ASKED[question.question],
        _answer(found, a, b),
        f"{_name(a)} {words.change(found.ratio.value)} against {_name(b)}",
        words.interval(found.ratio) or "none",
        _how_sure(summary, question),
    ]


def _answer(found: Comparison, a: Row, b: Row) -> str:
    if found.verdict == "inconclusive":
        return "not decided"
    if found.verdict == "equivalent":
        return "equivalent"
    return f"{_name(a if found.verdict == 'faster' else b)} is faster"


def _name(row: Row) -> str:
    shown = "".join(f" [{mark}]" for mark in row.marks if mark != "provisional")
    return words.clean(row.title, 40) + shown


def _how_sure(summary: Summary, question: Question) -> str:
    found = question.comparison
    parts = [
        f"{found.ratio.level * 100:.4g} %",
        words.launches([found.ratio.n]).removesuffix(" each"),
        *(["provisional"] if found.provisional else []),
        *([] if question.confirmed else ["not confirmed"]),
        *found.marks,
    ]
    return ", ".join([*parts, *_floor(summary, summary.at(found.a))])


def _floor(summary: Summary, row: Row) -> Iterator[str]:
    """What the A/A control is known to; one world size has it, which is named where it is another."""
    control = summary.control_of(row)
    if control:
        size = summary.at(control.comparison.b).world_size
        yield f"A/A {words.half_width(control.floor)}" + ("" if size == row.world_size else f" at {words.ranks(size)}")


def changes(summary: Summary) -> list[str]:
    """What would change the answers: one line a question, then what was not tried."""
    found = [f"{where}: {text}" for where, text in _each(summary)]
    return [*dict.fromkeys(found), *_turns(summary), *_untried(summary)]


def _each(summary: Summary) -> Iterator[tuple[str, str]]:
    for question in summary.questions:
        a = summary.at(question.comparison.a)
        where = f"{headline.subject([a])}, {headline.ASKED[question.question]}"
        yield where, _change(question, summary.records.study.margin)


def _change(question: Question, margin: float) -> str:
    found, ratio = question.comparison, question.comparison.ratio
    if not question.confirmed:
        return "fresh launches of the best (study.confirm=true) would confirm or undo it, further main ones would not"
    if not math.isfinite(ratio.high):
        return "one pair of launches gives no interval; two are the least, five make it more than provisional"
    if found.verdict == "inconclusive":
        return _needed(found, margin)
    if found.verdict == "equivalent":
        least = max(ratio.high, 1 / ratio.low) - 1
        return f"equivalent for every margin down to {words.significant(least * 100, 2)} %, no longer below it"
    nearer = ratio.low - 1 if ratio.low > 1 else 1 / ratio.high - 1
    farther = max(ratio.high, 1 / ratio.low) - 1
    return (
        f"a bias of {words.significant(nearer * 100, 2)} % between the two would undo the verdict; with a margin of "
        f"{words.significant(farther * 100, 2)} % or more the two would count as equivalent"
    )


def _needed(found: Comparison, margin: float) -> str:
    """The interval must shrink until it excludes 1 or lies within the margin."""
    ratio = found.ratio
    value, room = abs(math.log(ratio.value)), math.log1p(margin)
    needed = stats.launches_for(ratio, max(value, room - value))
    if "A/A" in found.marks:
        return "the A/A control differs by as much: find what tells two copies apart, launches alone will not do"
    if needed is None:
        return (
            f"more than {stats.MOST_LAUNCHES} launches would be needed, if the ratio stays: a steadier machine or "
            "another margin would decide it, launches hardly"
        )
    kind = "slower or faster" if value >= room - value else "equivalent"
    return f"about {max(needed, ratio.n + 1)} launches would decide it ({kind}), if the ratio stays"


def _turns(summary: Summary) -> Iterator[str]:
    """Where the answer is not the same for all that was asked."""
    winners = {
        (q.question, summary.at(q.comparison.a).group, summary.at(q.comparison.a).world_size): _winner(summary, q)
        for q in summary.questions
    }
    decided = {key: winner for key, winner in winners.items() if winner}
    for (question, group, size), winner in decided.items():
        if question == "best" and (other := decided.get(("default", group, size))) not in (None, winner):
            yield f"{group[0]}, {words.ranks(size)}: settings turn the answer, from {other} by default to {winner}"
    for place, told in ((2, "the number of ranks turns the answer"), (1, "the model turns the answer")):
        seen: dict[tuple[object, ...], set[str]] = {}
        for key, winner in decided.items():
            seen.setdefault(tuple(part for i, part in enumerate(key) if i != place), set()).add(winner)
        if any(len(names) > 1 for names in seen.values()):
            yield f"{told}: see the table of decisions"


def _winner(summary: Summary, question: Question) -> str:
    found = question.comparison
    place = {"faster": found.a, "slower": found.b}.get(found.verdict)
    return summary.at(place).case.engine if place is not None else ""


def _untried(summary: Summary) -> Iterator[str]:
    ranked = [row for row in summary.rows if row.ranked]
    if not ranked:
        return
    nodes = max(row.case.cluster.nodes for row in ranked)
    cells = sorted({row.case.cell for row in ranked if row.case.engine != "local"})
    over = "one node" if nodes == 1 else f"{nodes} nodes"
    most = words.ranks(max(row.world_size for row in ranked))
    yield (
        f"measured: {', '.join(cells) or 'the bare model only'}, up to {most} on {over}; what was not measured here "
        f"(other links, more ranks, other settings) may turn the answer"
    )
