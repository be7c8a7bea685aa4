"""What each key of the configuration takes, read from the types of `benches.spec`, and one line for what does not fit.

Keys are dotted, as they are typed on the command line.
"""

from __future__ import annotations

import difflib
import json
import math
import types
import typing
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from benches.errors import UserError
from benches.spec import Case, Count, Device, EngineName, Study, StudyName, TransportName
from launchers.kubernetes import KubernetesSpec
from launchers.slurm import SlurmSpec

Tree = dict[str, Any]
"""Keys by name; a leaf is a type."""

GROUPS = ("model", "data", "cluster")
"""Groups of files, one of which is chosen by name; `experiment` is the fourth and cannot be swept."""

# What the configuration takes beyond a Case: it says less, and `benches.resolve` fills it in.
WIDER: dict[str, Any] = {
    "engine": EngineName | None,
    "transport": TransportName | None,
    "device": Literal["auto"] | Device,
    "results": Annotated[str, Meta(min_length=1)],
    "data.per_rank_batch": Count | None,
    "data.global_batch": Count | None,
    "cluster.nodes": Count | Literal["auto"],
    "cluster.ranks_per_node": Count | Literal["auto"],
    "cluster.mpi_yield_when_idle": bool | None,
    "study.name": StudyName | None,
}
# The file that is chosen says what it is; another name over its values would be a lie.
CHOSEN = {"data.name": "data", "cluster.name": "cluster"}


@cache
def keys() -> Tree:
    """All keys of the configuration."""
    tree = _fields(Case)
    # Of the study as a whole, as `results` is: no Case holds it.
    tree["cluster"] |= {"slurm": _fields(SlurmSpec), "kubernetes": _fields(KubernetesSpec)}
    tree["study"] = {**_fields(Study), "contestants": dict[str, Any], "axes": dict[str, Any]}
    for key, hint in WIDER.items():
        *parents, name = key.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        node[name] = hint
    return tree


def hint_of(key: str) -> Any:
    """The type of a key, or a mapping of the keys below it. Raises KeyError for an unknown key."""
    node: Any = keys()
    for part in key.split("."):
        node = node[part] if isinstance(node, dict) else _inside(node)
    return node


def check(key: str, value: Any, shown: str | None = None) -> Any:
    """The value as `key` takes it: 25 as 25.0, or as "25" where text is taken. Raises UserError.

    `shown` is the key as the user can reach it.
    """
    start = f"{shown or key}={show(value)}"
    try:
        hint = hint_of(key)
    except KeyError:
        raise UserError(f"{start}: unknown key; {nearest_key(key)}") from None
    if isinstance(hint, dict):
        raise UserError(f"{start}: takes the keys {listed(f'{key}.{name}' for name in hint)}")
    if is_number(value) and takes_text(key):
        value = show(value)
    try:
        converted = msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise UserError(f"{start}: {expected(hint)}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{start}: {expected(hint)}")
    return converted


def takes_list(key: str) -> bool:
    """Whether a key takes a list as such: one of its own, or anything, as keys inside a free mapping do."""
    try:
        return any(kind is Any or get_origin(kind) in (list, tuple) for kind, _ in map(_base, _parts(hint_of(key))))
    except KeyError:
        return False


def is_number(value: Any) -> bool:
    """Whether a value is a number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def takes_text(key: str) -> bool:
    """Whether a key takes text as such, so that a number typed there is text too."""
    try:
        return any(_base(part)[0] is str for part in _parts(hint_of(key)))
    except KeyError:
        return False


def refuse_chosen(key: str, value: Any, shown: str) -> None:
    """Raise UserError for a key that only the choice of a file may set."""
    if key in CHOSEN:
        raise UserError(f"{shown}={show(value)}: comes with the file; choose it by {CHOSEN[key]}={show(value)}")


def flatten(tree: Any, prefix: str) -> dict[str, Any]:
    """Leaves of nested mappings by dotted key. A list is a leaf; an empty mapping has none. Raises UserError."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, node in tree.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if "." in str(name):  # Hydra would keep it beside its nested namesake, and one of the two would be lost
            raise UserError(f"{key}={show(node)}: {name} is a dotted key in a mapping; write it nested")
        leaves.update(flatten(node, key))
    return leaves


def expected(hint: Any) -> str:
    """`choices: ddp, horovod, local`, or `takes a number above 0, or null`."""
    parts = _parts(hint)
    if all(get_origin(part) is Literal or part is types.NoneType for part in parts):
        return f"choices: {listed(describe(part) for part in parts)}"
    return f"takes {', or '.join(describe(part) for part in parts)}"


def describe(hint: Any) -> str:
    """A type in words."""
    kind, bounds = _base(hint)
    if bounds is not None and bounds.description:
        return str(bounds.description)
    if get_origin(kind) is Literal:
        return listed(show(choice) for choice in get_args(kind))
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", types.NoneType: "null"}
    name = names.get(kind, "a mapping")
    return name + (_limits(bounds) if bounds is not None and kind in (int, float) else "")


def show(value: Any) -> str:
    """A value as one types it, on one line."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}: {show(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(show(one) for one in value) + "]"
    if isinstance(value, float):
        return f"{value:g}" if value.is_integer() and abs(value) < 1e6 else str(value)
    return json.dumps(value)


def nearest_key(key: str) -> str:
    """`nearest: a.b`, else the choices at the level where the key left the known ones."""
    known: dict[str, list[str]] = {}
    for name in _leaves(keys()):
        known.setdefault(name.rpartition(".")[2], []).append(name)
    *parents, last = key.split(".")
    while parents and not _is_branch(".".join(parents)):
        last = parents.pop()
    parent = "".join(f"{name}." for name in parents)
    siblings = list(hint_of(parent[:-1])) if parent else [*keys(), "experiment"]
    if close := difflib.get_close_matches(last, siblings, n=1):
        return f"nearest: {parent}{close[0]}"
    if close := difflib.get_close_matches(key.rpartition(".")[2], known, n=1, cutoff=0.75):
        return f"nearest: {listed(known[close[0]])}"
    return f"choices: {listed(parent + name for name in siblings)}"


def listed(names: typing.Iterable[str]) -> str:
    """Names, comma-separated."""
    return ", ".join(names)


def _fields(struct: type) -> Tree:
    hints = typing.get_type_hints(struct, include_extras=True)
    return {name: _subtree(hints[name]) for name in struct.__struct_fields__}  # type: ignore[attr-defined]


def _subtree(hint: Any) -> Any:
    for part in _parts(hint):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return _fields(part)
    return hint


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _base(hint: Any) -> tuple[Any, Meta | None]:
    """A type and its bounds."""
    return get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)


def _inside(hint: Any) -> Any:
    """Type of the values of a free mapping, such as model.kwargs; a mapping of anything holds anything."""
    if hint is Any:
        return Any
    if get_origin(hint) is dict:
        return get_args(hint)[1]
    raise KeyError


def _limits(bounds: Meta) -> str:
    words = {"ge": " of at least", "gt": " above", "lt": " below", "le": " of at most"}
    found = [(word, getattr(bounds, name)) for name, word in words.items()]
    return " and".join(f"{word} {limit}" for word, limit in found if limit is not None)


def _is_branch(key: str) -> bool:
    try:
        return isinstance(hint_of(key), dict)
    except KeyError:
        return False


def _leaves(tree: Tree, prefix: str = "") -> typing.Iterator[str]:
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from _leaves(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
