"""The methods by name. Adding one takes one file: a `Method` subclass in this folder is found by
itself, one from elsewhere is added with `register` or through the entry-point group
`fedrepro.methods`."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedrepro.base.errors import FedReproError, first_mistake, one_line
from fedrepro.base.places import LOAD
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
    for file in filter(None, os.environ.get(LOAD, "").split(os.pathsep)):
        load(Path(file))


def load(file: Path) -> list[type[Method]]:
    """Register the methods that a Python file defines, and return them.

    FedReproError: the file cannot be run, or defines no method.
    """
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise FedReproError(f"{file} is no Python file; name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except FedReproError:
        raise
    except Exception as error:  # whatever the file does
        raise FedReproError(
            f"{file} cannot be run ({type(error).__name__}: {one_line(error)}); correct it"
        ) from None
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Method) and item.__module__ == file.stem
    ]
    if not found:
        raise FedReproError(f"{file} defines no method; write a subclass of fedrepro.Method")
    return [register(method) for method in found]


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
