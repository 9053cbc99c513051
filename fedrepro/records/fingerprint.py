"""What a method from outside the package is made of, as a hash in its run ids: whoever changes any
of it must not be handed the runs of what it was. (The package's own methods have a version.)"""

from __future__ import annotations

import dis
import hashlib
import importlib
import linecache
import pickle
import re
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import joblib
from torch import Tensor

from fedrepro.base.errors import FedReproError

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
CONTAINERS = (list, tuple, dict, property, cached_property, partial, MethodType)
INSTALLED = {"site-packages", "dist-packages"}


def fingerprint(method: type) -> str:
    """16 hex digits: of the source of the class, of its bases and of what their code names, as far
    as that is the user's own (whole files, or whole cells of a notebook); of the compiled code; and
    of the values of what it names: defaults, closures, class attributes, module globals, whatever
    they are set to by now. Installed packages count by name alone, but for the class's own package.

    Raises:
        FedReproError: no source can be read, or a value has no content that can be told.
    """
    walk = _Walk(method)
    try:
        walk.take(method)
    except RecursionError:
        raise FedReproError(
            f"method {method.__name__} uses a value that contains itself; make it a plain one"
        ) from None
    return hashlib.sha256(repr(walk.parts).encode()).hexdigest()[:16]


class _Walk:
    """Goes through all that is reached from a class; `parts` is the text of it."""

    def __init__(self, root: type) -> None:
        self.root = root
        self.home = root.__module__.partition(".")[0]
        self.parts: list[str] = []
        self.seen: set[Any] = set()

    def take(self, item: Any, names: Set[str] = frozenset()) -> None:
        """One thing, and what it is made of. names: those that code asks a module for."""
        if isinstance(item, FunctionType | type | ModuleType):  # they may lead back to themselves
            if (id(item), names) in self.seen:
                return self._say("again", item.__name__)
            self.seen.add((id(item), names))
        self._say(type(item).__name__)
        if isinstance(item, PLAIN):
            self._say(repr(item))
        elif isinstance(item, CodeType):
            self._code(item)
        elif isinstance(item, FunctionType):
            self._function(item)
        elif isinstance(item, type):
            self._class(item)
        elif isinstance(item, ModuleType):
            self._module(item, names)
        else:
            self._value(item)

    def _say(self, *words: str) -> None:
        self.parts += words

    def _own(self, module: str) -> bool:
        """Whether a module is the user's: neither this package, nor Python's, nor installed."""
        top = module.partition(".")[0]
        if top == self.home:
            return True
        if top in ("", "fedrepro") or top in sys.stdlib_module_names:
            return False
        file = getattr(sys.modules.get(module), "__file__", None)
        return file is None or _is_own_file(file)

    def _value(self, item: Any) -> None:
        for part in _parts(item):
            self.take(part)
        if isinstance(item, CONTAINERS) or hasattr(item, "__wrapped__"):
            return
        if isinstance(item, BuiltinFunctionType):
            return self._say(item.__module__ or "", item.__qualname__)
        if isinstance(item, set | frozenset):
            return self._say(*sorted(self._apart(member) for member in item))
        if self._own(type(item).__module__) and hasattr(item, "__dict__"):
            self.take(type(item))
            return self.take(vars(item))
        try:
            self._say(joblib.hash(item.numpy(force=True) if isinstance(item, Tensor) else item))
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError):
            raise FedReproError(
                f"method {self.root.__name__} uses a {type(item).__name__} whose content cannot be "
                "told from another's; make it a field, a plain value or a function"
            ) from None

    def _apart(self, item: Any) -> str:
        """The text of one thing whatever was met before."""
        walk = _Walk(self.root)
        walk.take(item)
        return repr(walk.parts)

    def _code(self, code: CodeType) -> None:
        self._say(code.co_code.hex(), *code.co_names, *code.co_freevars)
        for const in code.co_consts:
            self.take(const)

    def _function(self, function: FunctionType) -> None:
        self._say(function.__module__ or "", function.__qualname__)
        if not self._own(function.__module__ or ""):
            return
        if _is_own_file(function.__code__.co_filename):
            self._text(function.__code__.co_filename, function.__name__)
        for part in (function.__code__, function.__defaults__, function.__kwdefaults__):
            self.take(part)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # nothing is in it yet
                self.take(cell.cell_contents)
        if self._own(function.__globals__.get("__name__", "")):
            self._named(function)

    def _named(self, function: FunctionType) -> None:
        """The globals and modules that a function's code names."""
        codes = list(_nested(function.__code__))
        attributes = frozenset(name for code in codes for name in code.co_names)
        found = [step for code in codes for step in dis.get_instructions(code)]
        named = {s.argval for s in found if s.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        for name in sorted(named & function.__globals__.keys()):
            self._say(name)
            self.take(function.__globals__[name], attributes)
        package = function.__globals__.get("__package__") or ""
        for name in sorted({s.argval for s in found if s.opname == "IMPORT_NAME"}):
            for whole in (name, f"{package}.{name}"):  # the second: `from .name import`
                if whole and self._own(whole) and not whole.startswith("."):
                    self._import(whole, attributes)

    def _import(self, name: str, attributes: Set[str]) -> None:
        try:
            self.take(importlib.import_module(name), attributes)
        except ImportError:  # no such module: training will say so, if it gets there
            self._say("absent", name)

    def _class(self, cls: type) -> None:
        self._say(cls.__module__, cls.__qualname__)
        if not self._own(cls.__module__):
            return
        written = {k: v for k, v in vars(cls).items() if not _is_made(k, v)}
        file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
        in_cell = cls.__module__ == "__main__"  # or in a script: its functions know which
        if not (in_cell and any(isinstance(item, FunctionType) for item in written.values())):
            self._text(file, cls.__name__)
        for base in cls.__mro__[1:]:
            self.take(base)
        for name in sorted(written):
            self._say(name)
            self.take(written[name])
        for field in vars(cls).get("__dataclass_fields__", {}).values():
            if isinstance(field.default_factory, FunctionType):
                self.take(field.default_factory)

    def _module(self, module: ModuleType, names: Set[str]) -> None:
        self._say(module.__name__)
        if not self._own(module.__name__):
            return
        if getattr(module, "__file__", None):
            self._text(str(module.__file__), module.__name__)
        for name in sorted(names & vars(module).keys()):
            self._say(name)
            self.take(vars(module)[name], names)

    def _text(self, file: str, name: str) -> None:
        """The whole source that something called `name` stands in, once."""
        text = "".join(linecache.getlines(file)) or _cell_of(name)
        if not text and not (Path(file).name == "__init__.py" and Path(file).exists()):
            raise FedReproError(
                f"the source of {name} cannot be read, so that a change of method "
                f"{self.root.__name__} would go unnoticed; define it in a file or a notebook's cell"
            )
        if text not in self.seen:
            self.seen.add(text)
            self._say(text)


def _parts(item: Any) -> Iterator[Any]:
    """What a container holds, or what a descriptor or a wrapper stands before."""
    if isinstance(item, dict):
        for pair in item.items():
            yield from pair
    elif isinstance(item, list | tuple):
        yield from item
    elif isinstance(item, property):
        yield from (item.fget, item.fset, item.fdel)
    elif isinstance(item, cached_property | partial):
        yield item.func
        yield from (item.args, item.keywords) if isinstance(item, partial) else ()
    elif isinstance(item, MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, BuiltinFunctionType):
        yield None if isinstance(item.__self__, ModuleType | type) else item.__self__
    elif hasattr(item, "__wrapped__"):  # static and class methods, functools.cache
        yield item.__wrapped__


def _nested(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions, lambdas and comprehensions in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _is_made(name: str, item: Any) -> bool:
    """Whether Python or `dataclass` put it into a class, not its author."""
    if not (name.startswith("__") and name.endswith("__")):
        return name == "_abc_impl"
    code = getattr(getattr(item, "__func__", item), "__code__", None)
    return code is None or code.co_filename == "<string>" or not _is_own_file(code.co_filename)


def _is_own_file(file: str) -> bool:
    path = Path(file)
    return not (INSTALLED & set(path.parts) or path.is_relative_to(Path(dis.__file__).parent))


def _cell_of(name: str) -> str:
    """The last executed cell of this notebook that defines `name`."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells: list[str] = shell.history_manager.input_hist_raw if shell is not None else []
    defines = re.compile(rf"^\s*(class|def) {re.escape(name)}\b", re.MULTILINE)
    return next((cell for cell in reversed(cells) if defines.search(cell)), "")
