"""The methods by name. `Method` subclasses in this folder or in extras are found automatically.
Others are added with `register` or through the entry-point group `fedrepro.methods`."""

import inspect
import json
import linecache
import math
import sys
from contextlib import redirect_stdout
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from torch.utils._pytree import tree_leaves

from fedrepro.base.errors import OWN_METHOD, FedReproError, first_mistake, need, one_line, one_of
from fedrepro.base.files import loaded, modules_of
from fedrepro.methods.base import Method

ENTRY_POINTS = "fedrepro.methods"

_registry: dict[str, type[Method]] = {}
_discovered = False
_adapter: Any = cache(TypeAdapter)


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its `name`; usable as a class decorator. FedReproError: the class
    does not meet the requirements of `Method`, a default is wrong, or its name is taken."""
    _discover()
    _check(method)
    _check_effects(method)
    held = _registry.get(method.name, method)
    place = f"{held.__module__}.{held.__qualname__}"
    taken = f"method name {method.name!r} is taken by {place}; choose another"
    need(place == f"{method.__module__}.{method.__qualname__}", taken)
    _made(method, {f.name: f.default for f in fields(method)})  # checked as given values are
    _registry[method.name] = method
    return method


def _check(method: Any) -> None:
    title = getattr(method, "__name__", repr(method))
    is_method = isinstance(method, type) and issubclass(method, Method)
    need(is_method, f"{title} is not a method; make it a subclass of Method")
    named = isinstance(vars(method).get("name"), str) and method.name
    need(named, f'{title} has no name; add name = "{title}" to the class')
    bare = not {*",;="} & {*method.name} and method.name == method.name.strip()
    need(bare, f"{title}.name has one of , ; = in it, or a space at an end; leave it out")
    cited = isinstance(getattr(method, "reference", None), str)
    need(cited, f"{title} has no reference; add the key of its paper: reference = ...")
    for field in fields(method):
        mend = "write hyper(value, source=...) as its default"
        need("source" in field.metadata, f"{title}.{field.name} has no source; {mend}")
        hides = callable(getattr(Method, field.name, None))
        need(not hides, f"{title}.{field.name} hides a method's function; choose another name")
        others = isinstance(field.metadata["alternatives"], list | tuple | None)
        need(others, f"{title}.{field.name}: alternatives are a list, as in alternatives=[0.1, 1]")
        try:
            json.dumps(field.default, allow_nan=False)
        except (TypeError, ValueError):
            lacks = f"{title}.{field.name} = {field.default!r} is not a plain, finite value"
            raise FedReproError(f"{lacks}; write numbers, words, or tuples of them") from None
    for own, function in vars(method).items():
        if inspect.isfunction(function) and inspect.isfunction(here := getattr(Method, own, None)):
            takes = list(inspect.signature(here).parameters)
            try:
                inspect.signature(function).bind(*takes)
            except TypeError:
                told = f"{title}.{own} must take {', '.join(takes)}; correct its parameters"
                raise FedReproError(told) from None


def _check_effects(method: type[Method]) -> None:
    """What is written without effect is refused: the method would be another, without a word."""
    title, order = method.__name__, method.__mro__
    late = ", ".join(cls.__name__ for cls in order[order.index(Method) + 1 : -1])
    need(not late, f"{title}: {late} after Method has no effect; write it before Method")
    alone = method.remember is not Method.remember and method.first_memory is Method.first_memory
    need(not alone, f"{title}.remember has no effect without first_memory, which gives its names")
    known = {field.name for field in fields(method)}
    code = (f.__code__ for f in vars(method).values() if inspect.isfunction(f))
    called = {name for one in code for name in one.co_names}  # by its own functions
    own_names = vars(method).keys() - known - called
    for own in (n for n in own_names if not hasattr(Method, n)):
        function = callable(vars(method)[own])
        alike = [n for n in dir(Method) if callable(getattr(Method, n)) == function]
        near = get_close_matches(own, alike, 1, 0.85)
        mend = f"write {', '.join(near)}, or choose another name"
        need(not near, f"{title}.{own} has no effect; {mend}")
    layers = order[: order.index(Method)]
    written = (n for cls in layers for n in vars(cls) if n[:2] != "__")
    acts = any(n in known or callable(getattr(Method, n, None)) for n in written)
    uncalled = (n for n in own_names if not hasattr(Method, n) and callable(getattr(method, n)))
    strange = min(uncalled, default="")
    mend = "write client_loss or another function of Method"
    need(acts or not strange, f"{title}.{strange} has no effect, and nothing else differs; {mend}")
    for cls in layers:
        for own in vars(cls).keys() & known - inspect.get_annotations(cls).keys():
            mend = f"write {own}: TYPE = hyper(...)"
            raise FedReproError(f"{title}.{own} without a type has no effect; {mend}")


def _discover() -> None:
    global _discovered
    if _discovered:
        return
    _discovered = True
    for module in modules_of("fedrepro.methods", "fedrepro.extras"):
        # A subclass of the same name, in a later file, adds its paper's variants and replaces it.
        _registry.update({method.name: method for method in _methods_of(module)})
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            with redirect_stdout(sys.stderr):  # what it prints is not part of any output
                register(entry.load())
        except (Exception, SystemExit) as error:  # of somebody else's: the others still work
            place = f"entry point {entry.name} = {entry.value}"
            why = f"{type(error).__name__}: {one_line(error)}"
            # A warning of Python's would show a line of this file.
            print(f"warning: the method of {place} is left out: {why}", file=sys.stderr)
    for file in loaded():
        load(file)


def _methods_of(module: ModuleType) -> list[type[Method]]:
    """The methods that a module defines."""
    classes = [item for item in vars(module).values() if isinstance(item, type)]
    own = [item for item in classes if item.__module__ == module.__name__ and item is not Method]
    return [item for item in own if issubclass(item, Method)]


def load(file: Path | str) -> list[type[Method]]:
    """Register the methods that a Python file defines, and return them. FedReproError: the file
    cannot be run, or defines no method."""
    file = Path(file)
    need(file.suffix == ".py", f"{file} is not a Python file; name one that ends in .py")
    need("." not in file.stem, f"{file} has a dot in its name before .py; rename it")
    module, held = ModuleType(file.stem), sys.modules.get(file.stem)
    module.__file__ = str(file.absolute())
    # Replacing another module, of Python or of the user, would break those who use it.
    own = held is None or getattr(held, "__file__", None) == module.__file__
    need(own, f"{file} has the name of a Python module in use; rename the file")
    sys.modules[file.stem] = module
    sys.path.append(str(file.absolute().parent))  # it may import a file beside it
    try:
        text = decode_source(content := file.read_bytes())
        # What ids hash: linecache alone would keep the text of the first load.
        linecache.cache[str(file)] = (len(text), None, text.splitlines(True), str(file))
        # Not by an import: it would use cached code for a file edited within the same second.
        with redirect_stdout(sys.stderr):
            exec(compile(content, str(file), "exec", dont_inherit=True), vars(module))
    except FedReproError:
        raise
    except (Exception, SystemExit) as error:  # the file may raise anything
        why = f"{type(error).__name__}: {one_line(error)}"
        decorated = "__setattr__" in why or "non-frozen dataclass" in why  # all that dataclass says
        mend = "remove @dataclass, a Method is one already" if decorated else "correct it"
        raise FedReproError(f"{file} cannot be run ({why}); {mend}") from None
    finally:
        sys.path.pop()
    found = _methods_of(module)
    need(found, f"{file} defines no method; write a subclass of fedrepro.Method")
    return [register(method) for method in found]


def names() -> tuple[str, ...]:
    """All known methods, sorted."""
    _discover()
    return tuple(sorted(_registry, key=str.lower))


def get(name: str) -> type[Method]:
    """The class of a method. FedReproError, with the nearest names, if there is none."""
    return _registry[one_of(name, names(), "method", OWN_METHOD)]


def create(name: str, /, **values: Any) -> Method:
    """A method with some fields set. Values are checked for name, type and bounds."""
    return _made(get(name), values)


def _made(method: type[Method], values: dict[str, Any]) -> Method:
    known = {f.name: f.metadata for f in fields(method)}
    for key in values:
        also = f" (fields of {method.name}); a protocol setting goes into changes, or --set"
        one_of(key, known, "field", also)
    try:
        made: Method = _adapter(method).validate_python(values)
    except ValidationError as error:
        raise FedReproError(f"{method.name} {first_mistake(error)}") from None
    except PydanticUserError:  # many lines
        mend = "write int, float, bool, str, Literal[...] or tuple[...], and import the names"
        raise FedReproError(f"{method.name}: the type of a field is not known; {mend}") from None
    for key in values:
        low, high, value = known[key]["low"], known[key]["high"], getattr(made, key)
        for given, one in zip(tree_leaves(values[key]), tree_leaves(value), strict=False):
            finite = not isinstance(one, float) or math.isfinite(one)
            finite = finite and isinstance(given, bool) <= isinstance(one, bool)
            need(finite, f"{method.name} {key} = {values[key]!r}: give finite numbers")
        number = isinstance(value, int | float)
        if number and ((low is not None and value < low) or (high is not None and value > high)):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise FedReproError(f"{method.name} {key} = {values[key]!r}: give a value {bounds}")
    return made


def describe() -> list[dict[str, Any]]:
    """Every method: name, reference, version, fields with default, status, source, alternatives."""
    wanted = ("name", "default", "status", "source", "alternatives")
    return [
        {"name": cls.name, "paper": cls.reference, "version": cls.version}
        | {"fields": [{key: row[key] for key in wanted} for row in cls.describe()]}
        for cls in map(get, names())
    ]
