"""A hash of the code of a method from outside the package, for its run ids: after a change of the
code, old runs must not be reused. (The package's own methods have a version.)"""

import dis
import importlib
import linecache
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from joblib.hashing import NumpyHasher
from torch import Tensor

from fedrepro.base.errors import FedReproError


def fingerprint(method: type) -> str:
    """16 hex digits of a hash: of the source of the class and of all of the user's own that it uses
    (whole files, or cells of a notebook); of the compiled code; and of the current values it uses:
    defaults, closures, class attributes, module globals. Installed packages count only by name,
    except the class's own package. FedReproError: no source can be read, or the content of a value
    cannot be hashed."""
    return _Content(method).digest(method)


class _Used(NamedTuple):
    """A module of the user, and the names that code uses from it."""

    module: ModuleType
    names: frozenset[str]


class _Content(NumpyHasher):  # type: ignore[misc]
    """Joblib's hash of a pickle that has the user's own objects by content, not by name."""

    def __init__(self, root: type) -> None:
        super().__init__("sha256")
        self.root = root
        self.used: dict[Any, _Used] = {}

    def digest(self, item: Any) -> str:
        return str(self.hash(item))[:16]

    def save(self, item: Any) -> None:
        try:
            super().save(item)
        except (pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError):
            raise FedReproError(
                f"method {self.root.__name__} uses a {type(item).__name__} whose content cannot be "
                "hashed; make it a field, a plain value or a function"
            ) from None

    def reducer_override(self, item: Any) -> Any:
        """Called by pickle first for every object. The state is pickled after the object is known,
        because it may refer to the object."""
        parts = self._parts(item) if item is not _thing else None
        return NotImplemented if parts is None else (_thing, (type(item).__name__,), parts)

    def _parts(self, item: Any) -> list[Any] | None:
        if isinstance(item, FunctionType):
            return [item.__module__, item.__qualname__, *self._function(item)]
        if isinstance(item, type):
            return [item.__module__, item.__qualname__, *self._class(item)]
        if isinstance(item, ModuleType):
            return [item.__name__]
        if isinstance(item, _Used):
            name, file, given = item.module.__name__, item.module.__file__, vars(item.module)
            text = self._text(file, name) if file else ""
            seen = {n: self._seen(given[n], item.names) for n in item.names & given.keys()}
            return [name, text, seen]
        if isinstance(item, CodeType):
            return [item.co_code, item.co_names, item.co_freevars, *item.co_consts]
        if isinstance(item, set | frozenset):
            return sorted(_Content(self.root).digest(member) for member in item)
        if isinstance(item, Tensor):
            return [item.numpy(force=True)]
        if isinstance(item, property):
            return [item.fget, item.fset, item.fdel]
        if isinstance(item, cached_property):
            return [item.func]
        if hasattr(item, "__wrapped__"):  # static and class methods, functools.cache
            return [item.__wrapped__]
        return None

    def _own(self, module: str | None) -> bool:
        """Whether a module is the user's: not of this package, of Python, or installed."""
        top = (module or "").partition(".")[0]
        if top == self.root.__module__.partition(".")[0]:
            return True
        if top in ("", "fedrepro") or top in sys.stdlib_module_names:
            return False
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        return file is None or _is_own_file(file)

    def _seen(self, item: Any, names: frozenset[str]) -> Any:
        if isinstance(item, ModuleType) and self._own(item.__name__):
            return self.used.setdefault((id(item), names), _Used(item, names))
        return item

    def _function(self, function: FunctionType) -> Iterator[Any]:
        if not self._own(function.__module__):
            return
        if _is_own_file(function.__code__.co_filename):
            yield self._text(function.__code__.co_filename, function.__name__)
        yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # nothing is in it yet
                yield cell.cell_contents
        if not self._own(function.__globals__.get("__name__")):
            return
        codes = list(_nested(function.__code__))
        names = frozenset(name for code in codes for name in code.co_names)
        steps = [step for code in codes for step in dis.get_instructions(code)]
        globals_ = {s.argval for s in steps if s.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        for name in sorted(globals_ & function.__globals__.keys()):
            yield name, self._seen(function.__globals__[name], names)
        package = function.__globals__.get("__package__") or ""
        for name in sorted({s.argval for s in steps if s.opname == "IMPORT_NAME"}):
            for whole in (name, f"{package}.{name}"):  # the second: `from .name import`
                if whole and self._own(whole) and not whole.startswith("."):
                    with suppress(ImportError):  # training will raise an error, if it uses the name
                        yield self._seen(importlib.import_module(whole), names)

    def _class(self, cls: type) -> Iterator[Any]:
        if not self._own(cls.__module__):
            return
        written = {k: v for k, v in vars(cls).items() if not _is_made(k, v)}
        # In a notebook or a script a class's functions know which cell or file they are from.
        alone = not any(isinstance(item, FunctionType) for item in written.values())
        if cls.__module__ != "__main__" or alone:
            file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
            yield self._text(file, cls.__name__)
        yield from (cls.__mro__[1:], written)
        for field in vars(cls).get("__dataclass_fields__", {}).values():
            if isinstance(field.default_factory, FunctionType):
                yield field.default_factory

    def _text(self, file: str, name: str) -> str:
        """The whole source text that defines `name`."""
        text = "".join(linecache.getlines(file)) or _cell_of(name)
        if not text and not (Path(file).name == "__init__.py" and Path(file).exists()):
            raise FedReproError(
                f"the source of {name} cannot be read, so a change of "
                f"method {self.root.__name__} would not be detected; define it in a file or a "
                "notebook's cell"
            )
        return text


def _thing(kind: str) -> None:
    """Placeholder in a pickle for what is pickled by content."""


def _nested(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and the code of the functions, lambdas and comprehensions in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _is_made(name: str, item: Any) -> bool:
    """Whether a class member comes from Python or `dataclass`, not from the author."""
    if name == "__annotate_func__":  # Python 3.14's, which holds the whole body of the class
        return True
    if not (name.startswith("__") and name.endswith("__")):
        return name == "_abc_impl"
    code = getattr(getattr(item, "__func__", item), "__code__", None)
    return code is None or code.co_filename == "<string>" or not _is_own_file(code.co_filename)


def _is_own_file(file: str) -> bool:
    path, python = Path(file), Path(dis.__file__).parent
    installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return not (installed or path.is_relative_to(python))


def _cell_of(name: str) -> str:
    """The last executed cell of this notebook that defines `name`."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells: list[str] = shell.history_manager.input_hist_raw if shell is not None else []
    defines = re.compile(rf"^\s*(class|def) {re.escape(name)}\b", re.MULTILINE)
    return next((cell for cell in reversed(cells) if defines.search(cell)), "")
