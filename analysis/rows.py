"""What is shown of a study: a Row a contestant, Failures, and the Summary that holds them. Seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis import marks, table, words
from analysis.compare import Comparison
from analysis.components import Components
from analysis.cost import COSTS, MILLION, of_samples
from analysis.curve import Point
from analysis.estimate import Estimate
from analysis.noise import Control
from analysis.questions import Best, Question
from analysis.table import Records
from benches.spec import Case, Contestant

SHAPE_KEYS = ("model", "cluster.nodes", "cluster.ranks_per_node")
"""Axes that a table shows by itself, in its title and its column of ranks."""


@dataclass(frozen=True)
class Row:
    """One contestant of the study."""

    index: int
    """Its place in `study.contestants`."""
    contestant: Contestant
    case_id: str
    step_time_s: Estimate | None
    """Median over launches; None when none is sound or the parity gate was not passed."""
    throughput: Estimate | None
    energy_per_million: Estimate | None
    """Wh of a million samples: median over launches; None where a launch's hardware counts no energy."""
    percentiles: dict[str, Estimate]
    """p50, p95, p99 of the steps of a launch on its slowest rank: median over launches, in seconds; p95 and p99 of
    launches with enough steps (analysis.samples)."""
    spread: Components
    """Of log step time, within launches and between them."""
    efficiency: dict[str, Estimate]
    """By name of the baseline; only those that were measured."""
    parity: dict[str, Any] | None
    """passed, error, bound; None: no launch came to the gate."""
    marks: tuple[str, ...]
    effective: dict[str, Any]
    curve: tuple[Point, ...]
    """The all-reduce itself, by size; empty where it was not timed."""

    @property
    def case(self) -> Case:
        return self.contestant.case

    @property
    def ranked(self) -> bool:
        return self.step_time_s is not None

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return words.title(self.contestant.name, self.case.cell)

    @property
    def group(self) -> tuple[str, ...]:
        """Rows of one table: model, the axes that neither its title nor its columns show, and marks that keep apart."""
        rest = {key: value for key, value in self.contestant.point.items() if key not in SHAPE_KEYS}
        return self.case.model.name, table.label(rest), *(mark for mark in self.marks if mark in marks.APART)

    @property
    def world_size(self) -> int:
        return self.case.cluster.world_size


@dataclass(frozen=True)
class Failure:
    """Launches of a contestant that ended alike."""

    row: Row
    kind: str
    """launch or parity."""
    launches: tuple[int, ...]
    status: str
    reason: str
    log_tail: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """What a study shows."""

    records: Records
    rows: list[Row]
    """Of the study's own contestants, by their place."""
    copies: list[Row]
    """Of the copies that the driver added; they stand behind the others in the study and in no table."""
    questions: list[Question]
    chosen: list[Best]
    """The best of each engine, where an engine had several to choose from."""
    comparisons: list[Comparison]
    controls: list[Control]
    references: dict[int, int]
    """Place of the reference of each contestant that is ranked."""
    failures: list[Failure]
    warnings: list[str]

    def groups(self) -> list[list[Row]]:
        """Rows that stand in one table, by world size and then as the study has them; a shared case stands once."""
        found: dict[tuple[str, ...], dict[str, Row]] = {}
        for row in sorted(self.rows, key=lambda row: row.world_size):
            found.setdefault(row.group, {}).setdefault(f"{row.case_id} {row.contestant.name}", row)
        return [list(rows.values()) for rows in found.values()]

    def at(self, place: int) -> Row:
        """The contestant at a place of the study, which may be a copy."""
        return self.rows[place] if place < len(self.rows) else self.copies[place - len(self.rows)]

    def cost(self, row: Row) -> dict[str, Estimate]:
        """`cost_per_million` and `cost_per_epoch` of its samples, as far as price, throughput and set are known;
        `energy_per_million` where energy was counted."""
        price, rate = self.records.study.price_per_node_hour, row.throughput
        energy = {"energy_per_million": row.energy_per_million} if row.energy_per_million else {}
        if price is None or rate is None:
            return energy
        header = self.records.headers.get(self.records.keys[row.index])
        counts = {"cost_per_million": MILLION, "cost_per_epoch": header.samples_per_epoch if header else None}
        nodes = row.case.cluster.nodes
        return {name: of_samples(count, rate, nodes, price) for name, count in counts.items() if count} | energy

    def control_of(self, row: Row) -> Control | None:
        """The A/A control that speaks for a row: of its table, and of its world size if there are several."""
        found = [c for c in self.controls if self.at(c.comparison.b).group == row.group]
        own = [c for c in found if self.at(c.comparison.b).world_size == row.world_size]
        return next(iter([*own, *found]), None)

    def against_reference(self, row: Row) -> Comparison | None:
        """The comparison of a row with its reference."""
        return self._by_pair.get((row.index, self.references.get(row.index)))

    @cached_property
    def _by_pair(self) -> dict[tuple[int, int | None], Comparison]:
        return {(found.a, found.b): found for found in self.comparisons}

    def plain(self) -> dict[str, Any]:
        """The object of `--json`."""
        return {
            "study": str(self.records.folder),
            "questions": [self._plain_question(question) for question in self.questions],
            "contestants": [self._plain_row(row) for row in self.rows],
            "comparisons": [self._plain_comparison(comparison) for comparison in self.comparisons],
            "control": [self._plain_control(control) for control in self.controls] or None,
            "failures": [_plain_failure(failure) for failure in self.failures],
            "warnings": self.warnings,
        }

    def _plain_row(self, row: Row) -> dict[str, Any]:
        case = row.case
        costs = self.cost(row)
        return {
            "name": row.contestant.name,
            "point": row.contestant.point,
            "case": row.case_id,
            "engine": case.engine,
            "transport": case.transport,
            "model": case.model.name,
            "world_size": row.world_size,
            "settings": row.contestant.settings,
            "effective": row.effective,
            "curve": [point.plain() for point in row.curve],
            "step_time_s": row.step_time_s and row.step_time_s.plain(),
            "throughput": row.throughput and row.throughput.plain(),
            "percentiles": {name: estimate.plain() for name, estimate in row.percentiles.items()},
            "spread": row.spread.plain(),
            **{name: costs[name].plain() if name in costs else None for name in COSTS},
            "efficiency": {name: estimate.plain() for name, estimate in row.efficiency.items()},
            "parity": row.parity,
            "marks": list(row.marks),
            "reference": self.references.get(row.index) == row.index,
        }

    def _plain_comparison(self, found: Comparison) -> dict[str, Any]:
        a, b = self.at(found.a), self.at(found.b)
        return {
            "a": a.contestant.name,
            "b": b.contestant.name,
            "point": a.contestant.point,
            "world_size": a.world_size,
            "case_a": a.case_id,
            "case_b": b.case_id,
            "ratio": found.ratio.plain(),
            "verdict": found.verdict,
            "direction": found.direction,
            "provisional": found.provisional,
            "spread": found.spread.plain(),
            "marks": list(found.marks),
        }

    def _plain_question(self, found: Question) -> dict[str, Any]:
        asked = {"question": found.question, "confirmed": found.confirmed}
        return asked | self._plain_comparison(found.comparison)

    def _plain_control(self, found: Control) -> dict[str, Any]:
        state = {"again": found.again and found.again.plain(), "state": found.state, "established": found.established}
        return self._plain_comparison(found.comparison) | state


def _plain_failure(failure: Failure) -> dict[str, Any]:
    return {
        "name": failure.row.contestant.name,
        "point": failure.row.contestant.point,
        "case": failure.row.case_id,
        "kind": failure.kind,
        "launches": list(failure.launches),
        "status": failure.status,
        "reason": failure.reason,
        "parity": failure.row.parity if failure.kind == "parity" else None,
        "log_tail": list(failure.log_tail),
    }
