"""A study's contestants and axes, expanded into rows: one for each contestant at each point of the axes.

Contestants and axes are nested mappings; a list is a sweep, anything else one value.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benches.errors import UserError
from benches.explain import GROUPS, check, flatten, listed, refuse_chosen, show
from benches.overrides import Delete

Sweep = dict[str, list[Any]]
"""Values of each dotted key."""

PODS = "cluster.kubernetes"
"""Keys below it say what is asked of Kubernetes, once for all launches."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\Z")
ALLOCATION = "cluster.slurm"
"""Keys below it say what is asked of Slurm, once for all launches."""
# Values that say by themselves what they are; others stand behind their key in a contestant's name.
BY_THEMSELVES = ("engine", "transport", "device", "precision", *GROUPS)


@dataclass(frozen=True)
class Grid:
    """What is compared, and across what."""

    contestants: dict[str, Sweep]
    axes: Sweep

    @property
    def size(self) -> int:
        """Rows of the grid."""
        return math.prod(map(len, self.axes.values())) * sum(
            math.prod(map(len, sweep.values())) for sweep in self.contestants.values()
        )


@dataclass(frozen=True)
class Row:
    """One contestant at one point, with the settings that make it so."""

    name: str
    key: str
    """The contestant's key in `study.contestants`."""
    point: dict[str, Any]
    settings: dict[str, Any]
    """What the contestant's own sub-grid sweeps."""
    own: dict[str, Any]
    """All that the contestant sets, swept or not."""

    @property
    def values(self) -> dict[str, Any]:
        """Every setting of the row, by dotted key."""
        return {**self.point, **self.own}

    def shown(self, key: str) -> str:
        """Where the user finds a key of this row."""
        return f"study.contestants.{self.key}.{key}" if key in self.own else f"study.axes.{key}"


def edit(study: dict[str, Any], edits: list[tuple[str, Any]]) -> dict[str, Any]:
    """The study's mappings with what the command line changes, adds and deletes. Raises UserError."""
    changed = _copy({"study": study})
    for key, value in edits:
        *parents, name = key.split(".")
        node = changed
        for depth, parent in enumerate(parents):
            node = node.setdefault(parent, {}) if value is not Delete else node.get(parent, {})
            if not isinstance(node, dict):
                above = ".".join(parents[: depth + 1])
                raise UserError(f"{key}: {above} is one value, {show(node)}; delete it first: ~{above}")
        if value is not Delete:
            node[name] = value
        elif name not in node:
            raise UserError(f"~{key}: is not there; {'.'.join(parents)} holds {listed(map(str, node)) or 'nothing'}")
        else:
            del node[name]
    return dict(changed["study"])


def read(study: Mapping[str, Any]) -> Grid:
    """Check contestants and axes and make a grid of them. Raises UserError."""
    contestants = _mapping(study.get("contestants"), "study.contestants")
    for name in contestants:
        if not PLAIN_NAME.match(str(name)):
            raise UserError(f"study.contestants.{name}: a contestant's name takes letters, digits, _ and -")
    sweeps = {str(name): _sweep(node, f"study.contestants.{name}") for name, node in contestants.items()}
    grid = Grid(sweeps, _sweep(study.get("axes"), "study.axes"))
    for name, sweep in grid.contestants.items():
        for key in sweep:
            if key in grid.axes:
                raise UserError(f"study.axes.{key}={show(grid.axes[key])}: contestant {name} sets {key} too; keep one")
    return grid


def check_sweep(key: str, values: list[Any], shown: str) -> list[Any]:
    """These values as `key` takes them. Raises UserError; `shown` is the key as the user can reach it."""
    if not values:
        raise UserError(f"{shown}=[]: an empty sweep leaves nothing to run; name a value, or delete it: ~{shown}")
    own = key == "experiment" or key.split(".")[0] in ("study", "results")
    if own or key.startswith((f"{ALLOCATION}.", f"{PODS}.")):
        raise UserError(f"{shown}={show(values)}: belongs to the study as a whole and cannot vary in it")
    for index, value in enumerate(values):
        if any(_same(value, other) for other in values[:index]):
            raise UserError(f"{shown}={show(values)}: {show(value)} stands there twice")
        refuse_chosen(key, value, shown)
    return values if key in GROUPS else [check(key, value, shown) for value in values]


def expand(grid: Grid) -> Iterator[Row]:
    """Rows, all contestants of a point together. Names are unique within a point."""
    for point in _combinations(grid.axes):
        for key, sweep in grid.contestants.items():
            for own in _combinations(sweep):
                settings = {name: value for name, value in own.items() if len(sweep[name]) > 1}
                yield Row(row_name(key, settings), key, point, settings, own)


def row_name(key: str, settings: Mapping[str, Any]) -> str:
    """`ddp`, or with what it sweeps: `ddp-mpi-bucket_cap_mb=25`."""
    leaves = [name.rpartition(".")[2] for name in settings]
    parts = [key]
    for (name, value), leaf in zip(settings.items(), leaves, strict=True):
        label = leaf if leaves.count(leaf) == 1 else name
        parts.append(show(value) if name in BY_THEMSELVES else f"{label}={show(value)}")
    return "-".join(parts)


def _copy(tree: Any) -> Any:
    return {name: _copy(node) for name, node in tree.items()} if isinstance(tree, dict) else tree


def _mapping(node: Any, shown: str) -> dict[Any, Any]:
    if node is not None and not isinstance(node, dict):
        raise UserError(f"{shown}={show(node)}: takes a mapping")
    return node or {}


def _sweep(node: Any, shown: str) -> Sweep:
    sweep = {}
    for where, values in flatten(_mapping(node, shown), shown).items():
        key = where.removeprefix(f"{shown}.")
        sweep[key] = check_sweep(key, values if isinstance(values, list) else [values], where)
    return sweep


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _combinations(sweep: Sweep) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))
