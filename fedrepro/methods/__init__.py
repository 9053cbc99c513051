"""The methods by name. `Method` subclasses in this folder or in extras are found automatically.
Others are added with `register` or through the entry-point group `fedrepro.methods`."""

import importlib.util
import sys
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedrepro.base.errors import FedReproError, choices, first_mistake, one_line, one_of
from fedrepro.base.files import loaded, modules_of
from fedrepro.methods.base import Method

ENTRY_POINTS = "fedrepro.methods"

_registry: dict[str, type[Method]] = {}
_discovered = False
_loaded: set[str] = set()  # names of the files that `load` has read
_adapter: Any = cache(TypeAdapter)


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its `name`; usable as a class decorator. FedReproError: the class
    does not meet the requirements of `Method`, a default is wrong, or its name is taken."""
    _discover()
    _check(method)
    held = _registry.get(method.name)
    same = held and (held.__module__, held.__qualname__) == (method.__module__, method.__qualname__)
    if held and not same:
        where = f"{held.__module__}.{held.__qualname__}"
        raise FedReproError(f"method name {method.name!r} is taken by {where}; choose another")
    _registry[method.name] = method
    own = {f.name: f.default for f in fields(method) if f.default is not MISSING}
    try:
        create(method.name, **own)  # defaults are checked as given values are
    except FedReproError:
        del _registry[method.name]
        raise
    return method


def _check(method: Any) -> None:
    title = getattr(method, "__name__", repr(method))
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise FedReproError(f"{title} is not a method; make it a subclass of Method")
    if not isinstance(vars(method).get("name"), str) or not method.name:
        raise FedReproError(f'{title} has no name; add name = "{title}" to the class')
    if not isinstance(getattr(method, "reference", None), str):
        raise FedReproError(f"{title} has no reference; add the key of its paper: reference = ...")
    if "__dataclass_params__" not in vars(method):
        raise FedReproError(f"{title} is not a dataclass; write @dataclass(frozen=True) above it")
    for field in fields(method):
        if "source" not in field.metadata:
            mend = "write hyper(value, source=...) as its default"
            raise FedReproError(f"{title}.{field.name} has no source; {mend}")
    # A misspelt function would never be called: the method would be another, without a word.
    for own in (n for n, item in vars(method).items() if callable(item) and not hasattr(Method, n)):
        if near := get_close_matches(own, dir(Method), 1, 0.85):
            mend = f"write {near[0]}, or choose another name"
            raise FedReproError(f"{title}.{own} is never called; {mend}")


def _discover() -> None:
    global _discovered
    if _discovered:
        return
    _discovered = True
    for module in modules_of("fedrepro.methods", "fedrepro.extras"):
        for item in vars(module).values():
            if not (isinstance(item, type) and issubclass(item, Method)) or item is Method:
                continue
            # A subclass of the same name adds its paper's variants and replaces it.
            if issubclass(item, _registry.get(item.name, Method)):
                _registry[item.name] = item
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            register(entry.load())
        except (Exception, SystemExit) as error:  # of somebody else's: the others still work
            place = f"entry point {entry.name} = {entry.value}"
            why = f"{type(error).__name__}: {one_line(error)}"
            # A warning of Python's would show a line of this file.
            print(f"warning: the method of {place} is left out: {why}", file=sys.stderr)
    for file in loaded():
        load(file)


def load(file: Path | str) -> list[type[Method]]:
    """Register the methods that a Python file defines, and return them. FedReproError: the file
    cannot be run, or defines no method."""
    file = Path(file)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise FedReproError(f"{file} is not a Python file; name one that ends in .py")
    held = sys.modules.get(file.stem)  # replacing Python's or a library's own would break others
    other = held is not None and getattr(held, "__file__", None) != spec.origin
    if other and file.stem not in _loaded:
        raise FedReproError(f"{file} has the name of a Python module in use; rename the file")
    _loaded.add(file.stem)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        # Not by the loader: it would use cached code for a file edited within the same second.
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(module))
    except FedReproError:
        raise
    except Exception as error:  # the file may raise anything
        why = f"{type(error).__name__}: {one_line(error)}"
        raise FedReproError(f"{file} cannot be run ({why}); correct it") from None
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
    """The class of a method. FedReproError, with the nearest names, if there is none."""
    return _registry[one_of(name, names(), "method")]


def create(name: str, **values: Any) -> Method:
    """A method with some fields set. Values are checked for name, type and bounds."""
    cls: Any = get(name)  # mypy does not hash a class
    known = {f.name: f for f in fields(cls)}
    for key, value in values.items():
        if key not in known:
            raise FedReproError(f"{name} has no field {key!r}; choose from {choices(key, known)}")
        low, high = known[key].metadata["low"], known[key].metadata["high"]
        number = isinstance(value, int | float)
        if number and ((low is not None and value < low) or (high is not None and value > high)):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise FedReproError(f"{name} {key} = {value!r}: give a value {bounds}")
    try:
        return _adapter(cls).validate_python(values)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise FedReproError(f"{name} {first_mistake(error)}") from None


def describe() -> list[dict[str, Any]]:
    """Every method: name, reference, version, fields with default, status, source, alternatives."""
    wanted = ("name", "default", "status", "source", "alternatives")
    return [
        {"name": cls.name, "paper": cls.reference, "version": cls.version}
        | {"fields": [{key: row[key] for key in wanted} for row in cls.describe()]}
        for cls in map(get, names())
    ]
