"""The memory of a handler: variables, objects and mocks that outlive its transaction."""

import asyncio
import io
import itertools
import os
import queue
import sys
import types
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from outboxkit.testing.outside import is_application

PLAIN = (bool, int, float, complex, str, bytes, type(None), itertools.count)
CONTAINERS = (list, dict, set, deque, bytearray, array)
"""With their subclasses, such as `Counter` and `defaultdict`."""
QUEUES = (queue.Queue, asyncio.Queue)
DEPTH = 5
TEST = "PYTEST_CURRENT_TEST"
OBJECTS_DEPTH = 3
"""So many objects, one in the other, are looked into."""
READS = ("get", "fetch", "read", "find", "list", "load", "query", "select", "is_", "has_", "__")
"""Names of a mock's methods that only read."""


@dataclass(frozen=True, slots=True)
class _Home:
    """The place of variables: a module, a class, an object, a function, its closure or its defaults."""

    label: str
    owner: Any
    cells: dict[str, types.CellType] | None = None

    def kinds(self) -> tuple[type, ...]:
        """The types of values that count; a queue's own numbers only grow."""
        return CONTAINERS if isinstance(self.owner, QUEUES) else PLAIN + CONTAINERS

    def items(self) -> Iterator[tuple[str, Any]]:
        """The variables."""
        if self.cells is None:
            yield from list(vars(self.owner).items())
            return
        for name, cell in self.cells.items():
            try:
                yield name, cell.cell_contents
            except ValueError:  # empty
                continue


class Memory:
    """The variables that a function can reach: those that hold numbers, texts, containers and mocks.

    They are those of its module, of the classes, objects and queues there, and of the application's modules that it
    names. Objects in these objects count, too, and so do closures, defaults and its own attributes.

    Args:
        function: the handler's.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._homes = list(_homes(getattr(function, "__wrapped__", function)))

    def state(self) -> dict[str, str]:
        """The variables' values as text, by their names."""
        state = {f"{home.label}.{name}": _shown(value) for home in self._homes for name, value in home.items()
                 if not name.startswith("__") and (isinstance(value, home.kinds()) or _is_mock(value))}  # fmt: skip
        return state | {f"os.environ[{name!r}]": value for name, value in os.environ.items() if name != TEST}

    def open_files(self) -> Iterator[io.IOBase]:
        """The files that are open for writing in these variables."""
        for home in self._homes:
            for name, value in home.items():
                if not name.startswith("__") and isinstance(value, io.IOBase):
                    with suppress(ValueError):  # it is detached from its buffer
                        if not value.closed and value.writable():
                            yield value


def _homes(function: Callable[..., Any]) -> Iterator[_Home]:
    closure = _Home("its closure", None, _cells(function))
    yield closure
    yield _Home("the function", function)
    yield _Home("its defaults", None, _defaults(function))
    modules = list(_modules_of(function))
    packages = {module.__name__.partition(".")[0] for module in modules}
    sources = [(module.__name__, list(vars(module).items())) for module in modules] + [("", list(closure.items()))]
    for module in modules:
        yield _Home(module.__name__, module)
    known: set[int] = set()
    for label, variables in sources:
        for name, value in variables:
            if _has_variables(value, packages):
                yield from _inside(_Home(f"{label}.{name}".lstrip("."), value), packages, known, OBJECTS_DEPTH)
            elif isinstance(value, types.FunctionType):
                yield _Home(f"the defaults of {label}.{name}", None, _defaults(value))
                if is_application(value.__code__.co_filename):
                    yield _Home(f"the closure of {label}.{name}", None, _cells(value))
            elif isinstance(value, types.ModuleType) and value not in modules:
                mocks = {each: types.CellType(mock) for each, mock in list(vars(value).items()) if _is_mock(mock)}
                yield _Home(value.__name__, None, mocks)


def _inside(home: _Home, packages: set[str], known: set[int], depth: int) -> Iterator[_Home]:
    """An object or a class, and the objects in its variables."""
    if id(home.owner) in known:
        return
    known.add(id(home.owner))
    yield home
    for name, value in home.items() if depth > 1 else ():
        if not name.startswith("__") and not isinstance(value, type) and _has_variables(value, packages):
            yield from _inside(_Home(f"{home.label}.{name}", value), packages, known, depth - 1)


def _cells(function: Any) -> dict[str, types.CellType]:
    """The variables of its closure."""
    code = getattr(function, "__code__", None)
    return dict(zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)) if code else {}


def _defaults(function: Any) -> dict[str, types.CellType]:
    """The containers that are defaults of a function's parameters."""
    named = getattr(function, "__kwdefaults__", None) or {}
    values = [*(getattr(function, "__defaults__", None) or ()), *named.values()]
    return {str(number): types.CellType(value) for number, value in enumerate(values) if isinstance(value, CONTAINERS)}


def _has_variables(value: Any, packages: set[str]) -> bool:
    """Whether it is a queue, a class of these packages or an object of one, and no table, event or mock."""
    if isinstance(value, QUEUES):
        return True
    cls = value if isinstance(value, type) else type(value)
    if (getattr(cls, "__module__", None) or "").partition(".")[0] not in packages or _is_mock(value):
        return False
    if isinstance(value, type):
        return not issubclass(value, Enum) and not hasattr(value, "__mapper__") and not hasattr(value, "metadata")
    return hasattr(value, "__dict__") and not isinstance(value, types.FunctionType | types.ModuleType | Enum)


def _modules_of(function: Callable[..., Any]) -> Iterator[types.ModuleType]:
    own = sys.modules.get(getattr(function, "__module__", None) or "")
    if own is None:
        return
    yield own
    names = {own.__name__}
    for value in list(vars(own).values()):
        if _is_mock(value):
            continue
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        module = sys.modules.get(name) if isinstance(name, str) else None
        if (
            module is not None
            and isinstance(name, str)
            and name not in names
            and is_application(getattr(module, "__file__", None) or "")
        ):
            names.add(name)
            yield module


def _is_mock(value: Any) -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


def _shown(value: Any, depth: int = DEPTH) -> str:
    """The value as text, the same for equal values; an object of a class is no more than its class."""
    match value:
        case _ if isinstance(value, PLAIN):
            text = repr(value)
        case _ if _is_mock(value):
            text = repr([call for call in value.mock_calls if not call[0].rpartition(".")[2].startswith(READS)])
        case _ if depth == 0:
            text = "…"
        case dict():
            items = ((key, each) for key, each in value.items() if each or not isinstance(value, Counter))
            texts = sorted(f"{_shown(key, depth - 1)}: {_shown(each, depth - 1)}" for key, each in items)
            text = f"{{{', '.join(texts)}}}"
        case set() | frozenset():
            text = f"{{{', '.join(sorted(_shown(each, depth - 1) for each in value))}}}"
        case list() | tuple() | deque() | array():
            text = f"[{', '.join(_shown(each, depth - 1) for each in value)}]"
        case bytearray():
            text = repr(bytes(value))
        case _:
            text = type(value).__qualname__
    return text
