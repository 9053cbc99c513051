"""The methods by name. Adding one takes one file: a `Method` subclass in this folder is found by
itself, one from elsewhere is added with `register` or through the entry-point group
`fedrepro.methods`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedrepro.base.errors import FedReproError, first_mistake
from fedrepro.methods.base import Method

ENTRY_POINTS = "fedrepro.methods"
ROOMS = ("fedrepro.methods", "fedrepro.extras")  # packages whose modules may hold methods

_registry: dict[str, type[Method]] = {}
_discovered = False


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its `name`; usable as a class decorator."""
    _registry[method.name] = method
    return method


def _discover() -> None:
    global _discovered
    if _discovered:
        return
    _discovered = True
    for room in ROOMS:
        for module in pkgutil.iter_modules(importlib.import_module(room).__path__):
            found = vars(importlib.import_module(f"{room}.{module.name}")).values()
            for item in found:
                if isinstance(item, type) and issubclass(item, Method) and item is not Method:
                    register(item)
    for entry in entry_points(group=ENTRY_POINTS):
        register(entry.load())


def names() -> tuple[str, ...]:
    """All known methods, sorted."""
    _discover()
    return tuple(sorted(_registry, key=str.lower))


def get(name: str) -> type[Method]:
    """The class of a method; FedReproError naming the choices where there is none."""
    _discover()
    if name not in _registry:
        raise FedReproError(f"no method {name!r}; choose from {', '.join(names())}")
    return _registry[name]


def create(name: str, **values: Any) -> Method:
    """A method with some fields set. Values are checked for name, type and bounds."""
    cls = get(name)
    known = {f.name: f for f in fields(cls)}
    for key, value in values.items():
        if key not in known:
            raise FedReproError(
                f"{name} has no field {key!r}; its fields are {', '.join(known) or 'none'}"
            )
        low, high = known[key].metadata["low"], known[key].metadata["high"]
        number = isinstance(value, int | float)
        if number and ((low is not None and value < low) or (high is not None and value > high)):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise FedReproError(f"{name} {key} = {value!r}: give a value {bounds}")
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        raise FedReproError(f"{name} {first_mistake(error)}") from None


def describe() -> list[dict[str, Any]]:
    """Every method: name, reference, version and fields with default, source, alternatives."""
    return [
        {
            "name": name,
            "paper": get(name).reference,
            "version": get(name).version,
            "fields": [
                {key: row[key] for key in ("name", "default", "source", "alternatives")}
                for row in get(name).describe()
            ],
        }
        for name in names()
    ]


def from_config(config: Mapping[str, Any]) -> Method:
    """The method a run's config names."""
    return create(config["name"], **config["fields"])
