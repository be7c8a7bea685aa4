"""The words of a command line, read by Hydra's grammar: groups, values, and edits of the study."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from benches.errors import UserError
from benches.explain import GROUPS, flatten, is_number, show, takes_text

FREE = ("study.contestants", "study.axes", "study.reference")
"""Mappings of the study that the command line may add to and delete from."""


class Delete:
    """Marks a key that is to go."""


@dataclass(frozen=True)
class Typed:
    """What was typed."""

    groups: dict[str, Any] = field(default_factory=dict)
    """Choices of files: model, data, cluster, experiment. A list where that was typed."""
    values: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted key."""
    edits: list[tuple[str, Any]] = field(default_factory=list)
    """Changes of `study.contestants`, `study.axes` and `study.reference` by dotted key, in the order typed."""


def parse(arguments: list[str]) -> Typed:
    """Read `key=value` words. Raises UserError for flags, comma sweeps and what the grammar does not take."""
    typed = Typed()
    parser = OverridesParser.create()
    for text in arguments:
        _sort(_read(parser, text), typed)
    return typed


def _read(parser: OverridesParser, text: str) -> Override:
    if text in ("-m", "--multirun"):
        raise UserError(f"{text}: there is no multirun; sweep an axis: study.axes.KEY=[VALUE,VALUE]")
    if text.startswith("-"):
        raise UserError(f"{text}: unknown option; settings are typed as key=value")
    key, equals, value = text.partition("=")
    if not equals and not text.startswith("~"):
        raise UserError(f"{text}: not a setting; settings are typed as key=value")
    try:
        override = parser.parse_overrides([text])[0]
    except HydraException:
        raise UserError(f"{text}: cannot be read; quote the value: {key}='\"{value}\"'") from None
    if override.is_sweep_override():
        raise UserError(f"{text}: commas and sweep functions are not taken here; name an axis: {_axis(key, value)}")
    return override


def _axis(key: str, value: str) -> str:
    simple = all(part.strip() and not set(part) & set("()[]{}") for part in value.split(","))
    return f"study.axes.{key.lstrip('+')}=[{value if simple else 'VALUE,VALUE'}]"


def _sort(override: Override, typed: Typed) -> None:
    """Put one word where it belongs. `+` and `++` mean no more than their absence: an unknown key is refused anyway."""
    key = override.get_key_element().lstrip("+~")
    if override.is_delete():
        if not key.startswith(tuple(f"{free}." for free in FREE)) and key not in FREE:
            raise UserError(f"~{key}: only entries of {', '.join(FREE)} can be deleted")
        typed.edits.append((key, Delete))
        return
    value = _as_typed(override)
    if key in (*GROUPS, "experiment") and not isinstance(value, dict):
        typed.groups[key] = value
    elif key.startswith(tuple(f"{free}." for free in FREE)) or key in FREE:
        leaves = flatten(value, key)
        if not leaves:
            raise UserError(f"{key}={show(value)}: an empty mapping sets nothing; to be rid of it, delete it: ~{key}")
        typed.edits.extend(leaves.items())
    elif key == "study" and isinstance(value, dict):
        raise UserError(f"study={show(value)}: name the keys one by one: study.axes.KEY=…")
    else:
        typed.values.update(flatten(value, key))


def _as_typed(override: Override) -> Any:
    """The value; the text that was typed where a key takes text and the grammar saw a number."""
    value: Any = override.value()
    return override.get_value_string() if is_number(value) and takes_text(override.key_or_group) else value
