"""`compose`: the words of a command line and the files under conf/ become a Study.

Later layers win: files, then the axes' point and the contestant's own settings, then the command line.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benches import grid, knobs
from benches.conffiles import UNREADABLE, Composed, Files, one_line
from benches.errors import UserError
from benches.explain import GROUPS, check, expected, hint_of, listed, refuse_chosen, show
from benches.grid import Grid, Row
from benches.machine import Machine
from benches.overrides import Typed, flatten, parse
from benches.resolve import ENGINES, case_of
from benches.spec import Case, Contestant, Study, build, plain

BATCHES = ("data.per_rank_batch", "data.global_batch")
DEFAULT_ENGINES = ("ddp", "horovod")
"""Contestants where a study names none. Each takes its transport by the device: gloo on the CPU, since both engines have
it there and in every build; nccl on CUDA, since nobody trains on GPUs over anything slower by choice."""


@dataclass(frozen=True)
class Resolved:
    """What a command line asks for."""

    study: Study
    results: Path
    """Folder of study folders, absolute."""
    warnings: list[str]


def compose(
    arguments: list[str],
    config_dir: Path | None = None,
    machine: Machine | None = None,
    shell: Mapping[str, str] = os.environ,
) -> Resolved:
    """The study that these words ask for, on this machine, in this shell. Raises UserError.

    `config_dir`: the user's own conf, with folders model, data, cluster and experiment; it adds files to ours.
    """
    composer = Composer(Files(config_dir), parse(arguments), machine or Machine())
    study = composer.study()
    environments = [contestant.case.cluster.env for contestant in study.contestants]
    knobs.refuse(shell, {name: value for env in environments for name, value in env.items()})
    warnings = [*knobs.overridden(shell), *crowding(study, composer.machine)]
    return Resolved(study, composer.results(), warnings)


class Composer:
    """One command line on its way to a Study."""

    def __init__(self, files: Files, typed: Typed, machine: Machine) -> None:
        self.files, self.machine = files, machine
        _check_values(typed.values)
        single = {group: choice for group, choice in typed.groups.items() if not isinstance(choice, list)}
        for group, choice in single.items():
            files.check(group, choice)
        self.base = files.compose(single)
        raw = self._study_mappings(typed)
        self.reference = flatten(raw.get("reference") or {}, "")
        self.grid, self.typed = narrow(grid.read(raw), typed, files)

    def study(self) -> Study:
        """The whole study, checked."""
        fields = {name: self._setting(f"study.{name}") for name in _study_fields()}
        fields["name"] = fields["name"] or self.base.choices["experiment"] or "study"
        contestants = self._contestants(fields["max_cases"])
        self._check_unused(contestants)
        _check_reference(self.reference, contestants)
        return build(Study, {**fields, "contestants": plain(contestants), "reference": self.reference})

    def results(self) -> Path:
        """Folder of study folders."""
        return Path(self._setting("results")).expanduser().absolute()

    def _study_mappings(self, typed: Typed) -> dict[str, Any]:
        """Contestants, axes and reference as files and command line have them."""
        raw = _resolved(self.base.config.study)
        for key, value in flatten({k: v for k, v in raw.items() if k not in grid.MAPPINGS}, "study").items():
            check(key, value)
        engine = typed.values.get("engine", self.base.config.engine)
        if not raw.get("contestants"):
            chosen = {engine: {}} if engine else {name: {"engine": name} for name in DEFAULT_ENGINES}
            raw["contestants"] = chosen
        return grid.edit(raw, typed.edits)

    def _setting(self, key: str) -> Any:
        value = self.typed.values.get(key, OmegaConf.select(self.base.config, key))
        check(key, value)
        return value

    def _contestants(self, most: int) -> list[Contestant]:
        found: list[Contestant] = []
        ids: set[str] = set()
        for row in grid.expand(self.grid):
            case = self._case(row)
            if case is None or (case.engine == "local" and case.id in ids):
                continue
            ids.add(case.id)
            if len(ids) > most:
                raise UserError(
                    f"study.max_cases={most}: the study has up to {self.grid.size} cases; narrow an axis, or raise it"
                )
            found.append(Contestant(name=row.name, point=row.point, settings=row.settings, case=case))
        _check_distinct(found)
        if not found:
            raise UserError("study.contestants: nothing is left to run; engine local takes cluster.ranks_per_node=1")
        return found

    def _case(self, row: Row) -> Case | None:
        groups = {**self.typed.groups, **{key: row.values[key] for key in GROUPS if key in row.values}}
        for group in GROUPS:
            if group in row.values:
                self.files.check(group, row.values[group], f"{row.origin(group)}.{group}")
        composed = self.files.compose(groups)
        settings = {key: value for key, value in row.values.items() if key not in GROUPS}
        explicit = {**settings, **{k: v for k, v in self.typed.values.items() if not k.startswith("study.")}}
        _check_factory(explicit, composed, row)
        content = _merged(composed.config, explicit)
        _check_row(row, content)
        return case_of(content, self.machine)

    def _check_unused(self, contestants: list[Contestant]) -> None:
        """Refuse an axis or a typed value that no case takes."""
        used = {contestant.case.engine for contestant in contestants}
        shown = {f"study.axes.{key}": (key, values) for key, values in self.grid.axes.items()}
        shown.update({key: (key, value) for key, value in self.typed.values.items()})
        for start, (key, value) in shown.items():
            engine = key.split(".")[0]
            if engine in ENGINES and engine not in used:
                raise UserError(f"{start}={show(value)}: no contestant runs engine {engine}")


def narrow(found: Grid, typed: Typed, files: Files) -> tuple[Grid, Typed]:
    """The grid with typed values in place of its axes', and what was typed without those. Raises UserError."""
    axes, rest = dict(found.axes), Typed(edits=typed.edits)
    for key, value in {**typed.groups, **typed.values}.items():
        owners = [name for name, sweep in found.contestants.items() if key in sweep]
        if owners:
            paths = " ".join(f"study.contestants.{name}.{key}={show(value)}" for name in owners)
            raise UserError(f"{key}={show(value)}: set by contestant {listed(owners)}; override it there: {paths}")
        if key in axes:
            axes.update(grid.sweep({key: value}))
        elif isinstance(value, list) and not _takes_list(key):
            raise UserError(f"{key}={show(value)}: takes one value; several are an axis: study.axes.{key}={show(value)}")
        else:
            (rest.groups if key in typed.groups else rest.values)[key] = value
    return Grid(found.contestants, axes), rest


def crowding(study: Study, machine: Machine) -> list[str]:
    """Warnings where ranks and their communication threads share cores (each rank wants one of either)."""
    most = max(contestant.case.cluster.ranks_per_node for contestant in study.contestants)
    if machine.cores >= 2 * most:
        return []
    return [f"no spare core for communication: {most} rank(s) on {machine.cores} core(s), fewer than 2 a rank"]
