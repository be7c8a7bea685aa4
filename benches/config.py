"""`compose`: the words of a command line and the files under conf/ become a Study.

Later layers win: files, then the axes' point and the contestant's own settings, then the command line.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benches import allocation, grid, knobs, lint
from benches.conffiles import UNREADABLE, Composed, Files, one_line
from benches.errors import UserError
from benches.explain import (
    GROUPS,
    check,
    flatten,
    is_number,
    listed,
    refuse_chosen,
    show,
    takes_list,
    takes_text,
)
from benches.grid import Grid, Row
from benches.machine import Machine
from benches.overrides import Typed, parse
from benches.resolve import ENGINES, case_of
from benches.schedule import arrange
from benches.spec import TRANSPORTS, Case, Contestant, Study, build, plain
from launchers.kubernetes import KubernetesSpec
from launchers.slurm import SlurmSpec

BATCHES = ("data.per_rank_batch", "data.global_batch")
START_UP_S = 10.0
"""Imports, joining and the gate of one launch with a spare core for each rank: about 6 to 12 s on the CPUs we have."""
UNLIMITED = 2**16
"""Cores of a pod without a limit, or with one in thousandths: what its node has is not known here."""
MAPPINGS = ("contestants", "axes", "reference")
DEFAULT_ENGINES = ("ddp", "horovod")
"""Contestants where a study names none. Each takes its transport by the device: gloo on the CPU, since every build of
either engine has it there and nothing but the engine differs; nccl on CUDA, where training goes over nothing else."""


@dataclass(frozen=True)
class Resolved:
    """What a command line asks for."""

    study: Study
    results: Path
    """Folder of study folders, absolute."""
    warnings: list[str]
    slurm: SlurmSpec | None = None
    """What is asked of Slurm; null: another cluster."""
    kubernetes: KubernetesSpec | None = None
    """What is asked of Kubernetes; null: another cluster."""


def compose(
    arguments: list[str],
    config_dir: Path | None = None,
    machine: Machine | None = None,
    shell: Mapping[str, str] = os.environ,
) -> Resolved:
    """The study that these words ask for, on this machine, in this shell. Raises UserError.

    `config_dir`: the user's own conf, with folders model, data, cluster and experiment; it adds files to ours.
    """
    files, typed = Files(config_dir), parse(arguments)
    check_typed(typed, files)
    base = files.compose(_single(typed.groups))
    slurm, kubernetes = slurm_of(base, typed), kubernetes_of(base, typed)
    machine = pod(kubernetes) if kubernetes else machine or (allocation.node(slurm, shell) if slurm else Machine())
    mappings = study_mappings(base.config, typed)
    found, rest = narrow(grid.read(mappings), typed)
    contestants = contestants_of(found, Rows(files, rest, machine), _setting("study.max_cases", base, rest))
    check_used(contestants, found, rest)
    check_allocation(contestants, slurm)
    check_pods(contestants, kubernetes)
    study = study_of(contestants, flatten(mappings.get("reference"), ""), base, rest)
    lint.refuse(study)
    for contestant in contestants:
        knobs.refuse(shell, contestant.case.cluster.env)
    warnings = [*knobs.overridden(shell), *crowding(study, machine), *lonely(study)]
    results = Path(_setting("results", base, rest)).expanduser().absolute()
    return Resolved(study, results, warnings, slurm, kubernetes)


def check_typed(typed: Typed, files: Files) -> None:
    """Raise UserError for a typed choice, key or value that cannot be."""
    for group, choice in typed.groups.items():
        for one in _listed(choice) if group in GROUPS else [choice]:
            files.check(group, one)
    for key, value in typed.values.items():
        refuse_chosen(key, value, key)
        if key == "engine" and isinstance(value, list):
            raise UserError(f"engine={show(value)}: takes one; others are contestants: study.contestants.NAME.engine=…")
        if isinstance(value, list) and not takes_list(key):
            for one in value:
                check(key, one)
        else:
            check(key, value)


def study_mappings(config: DictConfig, typed: Typed) -> dict[str, Any]:
    """Contestants, axes and reference: the files', with the default contestants, with what the command line edits."""
    study = resolved(config.study)
    mappings = {name: study.get(name) or {} for name in MAPPINGS}
    if not mappings["contestants"]:
        engine = typed.values.get("engine", config.engine)
        mappings["contestants"] = {engine: {}} if engine else {name: {"engine": name} for name in DEFAULT_ENGINES}
    return grid.edit(mappings, typed.edits)


def narrow(found: Grid, typed: Typed) -> tuple[Grid, Typed]:
    """The grid with typed values in place of its axes', and what was typed besides. Raises UserError."""
    axes, rest = dict(found.axes), Typed()
    for key, value in {**typed.groups, **typed.values}.items():
        owners = [name for name, sweep in found.contestants.items() if key in sweep]
        if owners:
            paths = " ".join(f"study.contestants.{name}.{key}={show(value)}" for name in owners)
            raise UserError(f"{key}={show(value)}: contestants set it ({listed(owners)}); override it there: {paths}")
        if key in axes:
            axes[key] = grid.check_sweep(key, _listed(value), key)
        elif isinstance(value, list) and not takes_list(key):
            raise UserError(f"{key}={show(value)}: takes one; several are an axis: study.axes.{key}={show(value)}")
        else:
            (rest.groups if key in typed.groups else rest.values)[key] = value
    return Grid(found.contestants, axes), rest


@dataclass(frozen=True)
class Rows:
    """Turns rows of the grid into cases."""

    files: Files
    typed: Typed
    machine: Machine

    def case(self, row: Row) -> Case | None:
        """The row's case; None where it has no place: the engine local at a world size above 1."""
        chosen = {group: row.values[group] for group in GROUPS if group in row.values}
        for group, choice in chosen.items():
            self.files.check(group, choice, row.shown(group))
        composed = self.files.compose({**self.typed.groups, **chosen})
        explicit = {key: value for key, value in row.values.items() if key not in GROUPS}
        explicit.update({key: value for key, value in self.typed.values.items() if not key.startswith("study.")})
        if "model.factory" in explicit and composed.choices["model"] != "custom":
            raise UserError(
                f"model.factory={show(explicit['model.factory'])}: model={composed.choices['model']} has its own; "
                "take model=custom"
            )
        content = merged(composed.config, explicit)
        check_own(row, content)
        try:
            return case_of(content, self.machine)
        except UserError as error:
            # A contestant's own setting can only be changed under its full path; an axis yields to the plain key.
            key = str(error).partition("=")[0]
            raise UserError(f"{row.shown(key).removesuffix(key)}{error}" if key in row.own else str(error)) from None


def merged(config: DictConfig, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """The files' values with the explicit ones over them, without the study. Raises UserError."""
    config = copy.deepcopy(config)
    given = [key for key in BATCHES if explicit.get(key) is not None]
    if len(given) == 1:
        other = BATCHES[1 - BATCHES.index(given[0])]
        explicit = {other: None, **explicit}
    del config["study"]
    for key, value in explicit.items():
        # OmegaConf takes no tuples.
        OmegaConf.update(config, key, list(value) if isinstance(value, tuple) else value, force_add=True)
    return resolved(config)


def check_own(row: Row, content: Mapping[str, Any]) -> None:
    """Raise UserError where a contestant names no engine, or sets what its engine does not use."""
    engine = content["engine"]
    if engine is None:
        raise UserError(f"study.contestants.{row.key}.engine=null: choices: {listed(TRANSPORTS)}")
    for key, value in row.own.items():
        group = key.split(".")[0]
        if (group in ENGINES and group != engine) or (key == "transport" and engine == "local" and value):
            raise UserError(f"{row.shown(key)}={show(value)}: the contestant's engine, {engine}, does not use it")


def contestants_of(found: Grid, rows: Rows, most: int) -> list[Contestant]:
    """The contestants of every point. Raises UserError where there are none, too many, or two alike."""
    if not found.contestants:
        raise UserError("study.contestants={}: nothing is left to run; name one: study.contestants.NAME.engine=ENGINE")
    contestants: list[Contestant] = []
    ids: set[str] = set()
    for row in grid.expand(found):
        case = rows.case(row)
        # The bare model is the baseline of the study, not a contestant of each point that leaves it unchanged.
        if case is None or (case.engine == "local" and case.id in ids):
            continue
        ids.add(case.id)
        if len(ids) > most:
            raise UserError(f"study.max_cases={most}: up to {found.size} cases; narrow an axis, or raise it")
        contestants.append(Contestant(name=row.name, point=row.point, settings=row.settings, case=case))
    if not contestants:
        raise UserError("study.contestants: nothing is left to run; engine local takes cluster.ranks_per_node=1")
    check_distinct(contestants)
    return contestants


def check_distinct(contestants: list[Contestant]) -> None:
    """Raise UserError where two contestants of one point have one name or one case."""
    names: dict[tuple[str, str], Contestant] = {}
    cases: dict[tuple[str, str], Contestant] = {}
    for one in contestants:
        point = show(one.point)
        where = f" at {point}" if one.point else ""
        if (point, one.name) in names:
            raise UserError(f"study.contestants.{one.name}: two contestants come to this name{where}; rename one")
        if (point, one.case.id) in cases:
            other = cases[point, one.case.id]
            raise UserError(f"study.contestants: {one.name} is the same case as {other.name}{where}; keep one")
        names[point, one.name] = cases[point, one.case.id] = one


def check_used(contestants: list[Contestant], found: Grid, typed: Typed) -> None:
    """Raise UserError for an axis or a typed value of an engine that no contestant runs."""
    used = {contestant.case.engine for contestant in contestants}
    axes = {f"study.axes.{key}": values for key, values in found.axes.items()}
    for shown, value in {**axes, **typed.values}.items():
        engine = shown.removeprefix("study.axes.").split(".")[0]
        if engine in ENGINES and engine not in used:
            raise UserError(f"{shown}={show(value)}: no contestant runs engine {engine}")


def study_of(contestants: list[Contestant], reference: dict[str, Any], base: Composed, typed: Typed) -> Study:
    """The study of these contestants. Raises UserError."""
    check_reference(reference, contestants)
    names = [str(name) for name in base.config.study if name not in MAPPINGS]
    fields = {name: _setting(f"study.{name}", base, typed) for name in names}
    fields["name"] = fields["name"] or base.choices["experiment"] or "study"
    budget_s = fields["budget_s"]
    if budget_s is not None and budget_s < START_UP_S:
        raise UserError(
            f"study.budget_s={show(budget_s)}: too little for one launch, which takes about {START_UP_S:g} s to start "
            "up; raise it, or null"
        )
    arranged = arrange(contestants, reference, max_alive=fields["max_alive"], control=fields["control"])
    return build(Study, {**fields, "contestants": plain(arranged), "reference": reference})


def check_reference(reference: Mapping[str, Any], contestants: list[Contestant]) -> None:
    """Raise UserError unless some contestant matches."""
    for key, value in reference.items():
        check(key, value, f"study.reference.{key}")
    for contestant in contestants:
        values = {**flatten(plain(contestant.case), ""), "model": contestant.case.model.name}
        if all(values.get(key) == value for key, value in reference.items()):
            return
    if reference:
        raise UserError(f"study.reference={show(dict(reference))}: no contestant matches; ~study.reference drops it")


def slurm_of(base: Composed, typed: Typed) -> SlurmSpec | None:
    """What the study asks of Slurm; None on another cluster. Raises UserError."""
    if base.config.cluster.name != "slurm":
        return None
    return build(SlurmSpec, {key: _setting(f"cluster.slurm.{key}", base, typed) for key in base.config.cluster.slurm})


def check_allocation(contestants: list[Contestant], slurm: SlurmSpec | None) -> None:
    """Raise UserError where a part of the study alone is to run in Slurm: its allocation would not hold them all."""
    kinds = {contestant.case.cluster.name for contestant in contestants}
    if "slurm" in kinds and (slurm is None or len(kinds) > 1):
        raise UserError("cluster=slurm: one allocation holds a whole study; choose it for all, by cluster=slurm itself")


def kubernetes_of(base: Composed, typed: Typed) -> KubernetesSpec | None:
    """What the study asks of Kubernetes; None on another cluster. Raises UserError."""
    if base.config.cluster.name != "kubernetes":
        return None
    own = {key: value for key, value in typed.values.items() if key.startswith("cluster.kubernetes.")}
    asked = merged(base.config, own)["cluster"]["kubernetes"]
    for key, value in flatten(asked, "cluster.kubernetes").items():
        check(key, value)
    # A quantity such as 16 is text.
    texts = {key: show(value) if is_number(value) and takes_text(f"cluster.kubernetes.{key}") else value
             for key, value in asked.items()}  # fmt: skip
    return build(KubernetesSpec, texts)


def pod(asked: KubernetesSpec) -> Machine:
    """A worker, for which the study is composed wherever that is done."""
    cores = int(float(asked.cpus)) if asked.cpus and asked.cpus[-1].isdigit() else UNLIMITED
    return Machine(cores=cores, gpus=lambda _: asked.gpus)


def check_pods(contestants: list[Contestant], asked: KubernetesSpec | None) -> None:
    """Raise UserError where a part of the study alone is to run in pods: one set of them holds the whole study."""
    kinds = {contestant.case.cluster.name for contestant in contestants}
    if "kubernetes" in kinds and (asked is None or len(kinds) > 1):
        raise UserError(
            "cluster=kubernetes: one set of pods holds a whole study; choose it for all, by that word itself"
        )


def crowding(study: Study, machine: Machine) -> list[str]:
    """A warning where a rank has no second core: its communication threads then take the core that computes."""
    cases = [contestant.case for contestant in study.contestants if contestant.case.engine != "local"]
    ranks = max((case.cluster.ranks_on_a_machine for case in cases), default=0)
    if machine.cores >= 2 * ranks:
        return []
    return [
        f"no spare core for communication: {ranks} rank(s) on {machine.cores} core(s), fewer than two a rank; take "
        "fewer ranks a host, or a larger host"
    ]


def lonely(study: Study) -> list[str]:
    """A warning where nothing can be compared."""
    if any(len([one for one in field if one.case.engine != "local"]) > 1 for field in lint.meeting(study.contestants)):
        return []
    return ["no two contestants meet: there will be times, but no verdict; add one: study.contestants.NAME.engine=…"]


def resolved(config: DictConfig) -> dict[str, Any]:
    """Plain mappings with every interpolation resolved. Raises UserError."""
    try:
        return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
    except UNREADABLE as error:
        raise UserError(f"conf: {one_line(error)}") from error


def _setting(key: str, base: Composed, typed: Typed) -> Any:
    value = typed.values.get(key, OmegaConf.select(base.config, key))
    return check(key, OmegaConf.to_object(value) if OmegaConf.is_config(value) else value)


def _single(groups: Mapping[str, Any]) -> dict[str, Any]:
    return {group: choice for group, choice in groups.items() if not isinstance(choice, list)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
