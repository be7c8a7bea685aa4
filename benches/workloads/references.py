"""Python objects by name, `package.module:attribute`. Imports nothing heavy itself, only what is named."""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

from benches.errors import UserError
from benches.spec import ModelSpec

# Packages that are extras of ours, and the extra that brings each.
EXTRAS = {"torchvision": "vision", "transformers": "text", "sklearn": "data"}


def load(reference: str, key: str) -> Callable[..., Any]:
    """Import the callable that `reference` names. Raises UserError that begins with `key` (such as model.factory)."""
    module_name, _, attribute = reference.partition(":")
    module = _import(module_name, f"{key}={reference}")
    try:
        found = operator.attrgetter(attribute)(module)
    except AttributeError:
        raise UserError(f"{key}={reference}: module {module_name} has no {attribute}") from None
    if not callable(found):
        raise UserError(f"{key}={reference}: is a {type(found).__name__}, not a callable")
    return found  # type: ignore[no-any-return]


def check_model(model: ModelSpec) -> None:
    """Import what `model` names and try its arguments against the signatures, without building anything.

    Raises UserError.
    """
    _bind(load(model.factory, "model.factory"), "model.kwargs", model.factory, (), model.kwargs)
    _bind(load(model.batch, "model.batch"), "model.batch_kwargs", model.batch, (None, 1, None), model.batch_kwargs)
    if model.loss is not None:
        load(model.loss, "model.loss")


def missing(package: str, start: str) -> UserError:
    """The error for a package that is not installed; `start` is the key and value that asked for it."""
    remedy = f"pip install -e '.[{EXTRAS[package]}]'" if package in EXTRAS else "install it, or correct the name"
    return UserError(f"{start}: no module named {package}; {remedy}")


def one_line(error: BaseException) -> str:
    """Type and text of an error without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _import(name: str, start: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing(error.name or name, start) from error
    except Exception as error:  # a user's module may raise anything while it is imported
        raise UserError(f"{start}: importing {name} failed: {one_line(error)}") from error


def _bind(
    function: Callable[..., Any], key: str, reference: str, positional: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables tell no signature
        return
    try:
        signature.bind(*positional, **kwargs)
    except TypeError as error:
        names = ", ".join(list(signature.parameters)[len(positional) :])
        raise UserError(f"{key}={kwargs}: {reference} takes {names}; {error}") from None
