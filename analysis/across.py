"""Two studies side by side, before and after an upgrade or on two clusters: the same cases, `b` against `a`.

Launches of two studies are not pairs: they ran at other times. So each case has Welch's t interval on the logarithms of
its launches' step times (Welch, Biometrika 34, 1947), and all cases together hold with stats.LEVEL (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from analysis import marks, stats, table, tidy, words
from analysis.document import Bullets, Document, Section
from analysis.estimate import Estimate
from analysis.grids import Column, Grid
from analysis.launch import MAIN
from analysis.table import Records
from benches.errors import UserError


@dataclass(frozen=True)
class Change:
    """One case in both studies."""

    title: str
    point: str
    world_size: int
    marks: str
    ratio: Estimate | None
    """Step time in `b` ÷ in `a`; None where the case did not run well in both. n: launches of the study with fewer."""
    verdict: str
    """slower, faster, equivalent or inconclusive; broken: it ran well in `a` only; mended: in `b` only."""

    @property
    def regression(self) -> bool:
        """Slower (its interval excludes 1 and is not within the margin), or no longer running."""
        return self.verdict in ("slower", "broken")


@dataclass(frozen=True)
class Across:
    """What two studies have in common."""

    a: Records
    b: Records
    changes: list[Change]
    warnings: list[str]

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.regression]


def compare(a: Path, b: Path) -> Across:
    """Join two studies on case. Raises UserError where a folder holds no study, or they share no case."""
    records = table.read(a), table.read(b)
    sides = [_sides(one) for one in records]
    common = [case for case in sides[0] if case in sides[1]]
    if not common:
        raise UserError(f"b={b}: shares no case with {a}; both must hold the same configuration, so run it again there")
    both = [case for case in common if all(len(side[case].logs) for side in sides)]
    level = stats.simultaneous(stats.LEVEL, len(both))
    margin = records[0].study.margin
    changes = [_change(sides[0][case], sides[1][case], level, margin) for case in common]
    found = [change for change in changes if change is not None]
    doubts = [*_left_out(len(common) - len(found)), *_together(found), *_warnings(records, sides)]
    return Across(*records, found, doubts)


@dataclass(frozen=True)
class _Side:
    """One case in one study."""

    place: int
    records: Records
    logs: NDArray[np.float64]
    """Of the step times of its sound main launches."""
    tried: bool
    """A launch came to an end of its own: not missing, interrupted, or unreadable."""


def _sides(records: Records) -> dict[str, _Side]:
    """By case; a case that several points share stands once, and copies do not count."""
    found: dict[str, _Side] = {}
    launches = records.launches[records.launches["stage"] == MAIN]
    refused = set(records.launches.loc[records.launches["parity_passed"].isin([False]), "contestant"])
    for place, one in enumerate(records.study.contestants):
        own = launches[launches["contestant"] == place]
        sound = own["usable"] & (place not in refused)
        logs = np.log(own.loc[sound, "step_time_s"].to_numpy(dtype=float))
        if not one.copy:
            tried = bool(own["status"].isin(["ok", "failed", "timeout"]).any())
            found.setdefault(records.case_ids[place], _Side(place, records, logs, tried))
    return found


def _change(a: _Side, b: _Side, level: float, margin: float) -> Change | None:
    one = a.records.study.contestants[a.place]
    carried = " ".join(dict.fromkeys(mark for side in (a, b) for mark in _marks(side)))
    who = words.title(one.name, one.case.cell), table.label(one.point), one.case.cluster.world_size, carried
    if len(a.logs) and len(b.logs):
        ratio = welch(a.logs, b.logs, level)
        return Change(*who, ratio, stats.verdict(ratio, margin))
    if len(a.logs) and b.tried:
        return Change(*who, None, "broken")
    return Change(*who, None, "mended") if len(b.logs) and a.tried else None


def _marks(side: _Side) -> list[str]:
    case = side.records.study.contestants[side.place].case
    launches = side.records.launches[side.records.launches["contestant"] == side.place]
    return [mark for mark in marks.of_launches(case, launches) if mark != "provisional"]


def welch(a: NDArray[np.float64], b: NDArray[np.float64], level: float) -> Estimate:
    """exp(mean b − mean a) with Welch's interval; a, b: logarithms, one a launch. No bounds below two on a side."""
    mean, n = float(b.mean() - a.mean()), min(len(a), len(b))
    if n < 2:
        return Estimate(math.exp(mean), 0.0, math.inf, level, n, "ratio")
    parts = np.array([np.var(one, ddof=1) / len(one) for one in (a, b)])
    error = float(parts.sum())
    if error == 0:
        return Estimate(math.exp(mean), math.exp(mean), math.exp(mean), level, n, "ratio")
    free = error**2 / float(np.sum(parts**2 / np.array([len(a) - 1, len(b) - 1])))
    half = float(distributions.t.ppf((1 + level) / 2, free)) * math.sqrt(error)
    low, high = np.exp(np.clip([mean - half, mean + half], -700.0, 700.0))
    return Estimate(math.exp(mean), float(low), float(high), level, n, "ratio")


def _left_out(count: int) -> Iterator[str]:
    if count:
        cases = f"{count} case{'s' if count > 1 else ''} of both"
        yield f"{cases}: no sound launch in either, or not run in one: not compared"


def _together(found: list[Change]) -> Iterator[str]:
    """Where every case moved the same way: launches cannot tell a change of all code from a change of the machine."""
    ratios = [change.ratio for change in found if change.ratio is not None]
    ways = {stats.direction(ratio) for ratio in ratios}
    if len(ratios) > 1 and len(ways) == 1 and None not in ways:
        least = min((ratio.value for ratio in ratios), key=lambda value: abs(math.log(value)))
        yield (
            f"all {len(ratios)} cases moved one way, the least is {words.percent(least)}: so they do, too, where the "
            "machine itself has changed; taking turns in one study tells the two apart (contestants with python:)"
        )


def _warnings(records: tuple[Records, Records], sides: list[dict[str, _Side]]) -> Iterator[str]:
    machines = [{tidy.machine(one, place) for place in range(len(one.case_ids))} - {""} for one in records]
    if machines[0] != machines[1]:
        told = " against ".join("; ".join(sorted(found)) or "unknown" for found in machines)
        yield f"the machines differ ({told}): a change may be the machine's"
    versions = [_versions(one) for one in records]
    every = dict.fromkeys([*versions[0], *versions[1]])
    names = [name for name in every if versions[0].get(name) != versions[1].get(name)]
    if names:
        yield "versions differ: " + ", ".join(f"{n} {versions[0].get(n)} → {versions[1].get(n)}" for n in names)
    for one, other, name in ((sides[0], sides[1], "a"), (sides[1], sides[0], "b")):
        if alone := len(set(one) - set(other)):
            yield f"{alone} case{'s' if alone > 1 else ''} of {name} only: not compared"
    yield "the two ran at different times, so the machine's drift is in the intervals only as far as launches show it"


def _versions(records: Records) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in records.headers.values():
        versions = header.provenance.get("versions")
        found |= {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    return found


def document(found: Across) -> Document:
    """For a pull request: what got slower, the table, the warnings."""
    grid = Grid("b against a", [Column(title) for title in HEAD], [_cells(change) for change in found.changes])
    lines = [f"{c.title}{f', {c.point}' if c.point else ''}: {_told(c)}" for c in found.regressions]
    return Document(
        f"Ringduel: {found.b.study.name} against {found.a.study.name}",
        [
            Section("Regressions", [Bullets(lines or ["none that the data support"])]),
            Section("Cases", [grid, Bullets(LEGEND, quiet=True)]),
            Section("Warnings", [Bullets(found.warnings)]),
        ],
    )


HEAD = ("contestant", "point", "ranks", "step time", "interval", "n", "verdict")
LEGEND = ("step time: of b ÷ of a; all intervals hold together with 95 %; broken: it ran well in a only",)


def _cells(change: Change) -> list[str]:
    shown = "".join(f" [{mark}]" for mark in change.marks.split())
    ratio = change.ratio
    numbers = [words.change(ratio.value), words.interval(ratio) or "none", str(ratio.n)] if ratio else ["–", "–", "–"]
    doubt = " (provisional)" if ratio and ratio.n < stats.PROVISIONAL_BELOW else ""
    return [change.title + shown, change.point, str(change.world_size), *numbers, change.verdict + doubt]


def _told(change: Change) -> str:
    if change.ratio is None:
        return "it ran well in a and fails in b"
    return f"{words.percent(change.ratio.value)} ({words.interval(change.ratio)}, {change.ratio.n} launches)"


def plain(found: Across) -> dict[str, object]:
    """The object of `--json`."""
    changes = [asdict(one) | {"ratio": one.ratio and one.ratio.plain(), "regression": one.regression} for one in
               found.changes]  # fmt: skip
    studies = {"a": str(found.a.folder), "b": str(found.b.folder)}
    return {**studies, "changes": changes, "regressions": len(found.regressions), "warnings": found.warnings}
