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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Any

from outboxkit.testing.outside import is_application

CONTAINERS = (list, dict, set, deque, bytearray, array)
"""With their subclasses, such as `Counter` and `defaultdict`."""
LEAVES = (bool, int, float, complex, str, bytes, type(None), itertools.count, io.IOBase, *CONTAINERS)
QUEUES = (queue.Queue, asyncio.Queue)
DEPTH = 5
TEST = "PYTEST_CURRENT_TEST"
OBJECTS_DEPTH = 3
"""So many objects, one in the other, are looked into."""
READS = ("get", "fetch", "read", "find", "list", "load", "query", "select", "is_", "has_", "__")
"""Names of a mock's methods that only read."""


class Memory:
    """The variables that a function can reach: those that hold numbers, texts, containers, open files and mocks.

    They are those of its module, of the classes, objects and queues there, and of the application's modules that it
    names. Objects in these objects count, too, and so do closures, defaults and its own attributes.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = getattr(function, "__wrapped__", function)
        self._modules = list(_modules_of(self._function))
        self._packages = {module.__name__.partition(".")[0] for module in self._modules}

    def state(self) -> dict[str, str]:
        """The variables' values as text, by their names."""
        state = {name: _shown(value) for name, value in self._variables() if not isinstance(value, io.IOBase)}
        return state | {f"os.environ[{name!r}]": value for name, value in os.environ.items() if name != TEST}

    def open_files(self) -> Iterator[io.IOBase]:
        """The files that are open for writing in these variables."""
        for _, value in self._variables():
            if isinstance(value, io.IOBase):
                with suppress(ValueError):  # it is detached from its buffer
                    if not value.closed and value.writable():
                        yield value

    def _variables(self) -> Iterator[tuple[str, Any]]:
        known: set[int] = set()
        yield from self._walk("its closure", _cells(self._function), OBJECTS_DEPTH, known)
        yield from self._walk("the function", vars(self._function).items(), OBJECTS_DEPTH, known)
        yield from self._walk("its defaults", _defaults(self._function), OBJECTS_DEPTH, known)
        for module in self._modules:
            yield from self._walk(module.__name__, list(vars(module).items()), OBJECTS_DEPTH, known)

    def _walk(
        self, label: str, variables: Iterable[tuple[str, Any]], depth: int, known: set[int]
    ) -> Iterator[tuple[str, Any]]:
        """The variables, and those of the objects and functions in them."""
        for name, value in variables:
            place = f"{label}.{name}"
            if name.startswith("__"):
                continue
            if isinstance(value, LEAVES) or _is_mock(value):
                yield place, value
            elif id(value) in known or depth == 0:
                continue
            elif isinstance(value, QUEUES):  # its own numbers only grow
                yield from ((f"{place}.{each}", held) for each, held in vars(value).items() if isinstance(held, deque))
            elif isinstance(value, types.FunctionType):
                known.add(id(value))
                yield from self._walk(f"the defaults of {place}", _defaults(value), 0, known)
                if is_application(value.__code__.co_filename):
                    yield from self._walk(f"the closure of {place}", _cells(value), depth - 1, known)
            elif isinstance(value, types.ModuleType):
                if value not in self._modules:
                    mocks = [(each, mock) for each, mock in list(vars(value).items()) if _is_mock(mock)]
                    yield from self._walk(value.__name__, mocks, 0, known)
            elif _has_variables(value, self._packages):
                known.add(id(value))
                yield from self._walk(place, list(vars(value).items()), depth - 1, known)


def _cells(function: Any) -> Iterator[tuple[str, Any]]:
    """The variables of its closure."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # it is empty
            yield name, cell.cell_contents


def _defaults(function: Any) -> list[tuple[str, Any]]:
    """The containers that are defaults of a function's parameters."""
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [(str(number), value) for number, value in enumerate(values) if isinstance(value, CONTAINERS)]


def _has_variables(value: Any, packages: set[str]) -> bool:
    """Whether it is a class of these packages or an object of one, and no table, event or kind."""
    cls = value if isinstance(value, type) else type(value)
    if (getattr(cls, "__module__", None) or "").partition(".")[0] not in packages or issubclass(cls, Enum):
        return False
    if isinstance(value, type):
        return not hasattr(value, "__mapper__") and not hasattr(value, "metadata")
    return hasattr(value, "__dict__")


def _modules_of(function: Callable[..., Any]) -> Iterator[types.ModuleType]:
    """The function's module, and the application's modules that it names."""
    own = sys.modules.get(getattr(function, "__module__", None) or "")
    if own is None:
        return
    yield own
    names = {own.__name__}
    for value in list(vars(own).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if _is_mock(value) or not isinstance(name, str) or name in names:
            continue
        names.add(name)
        if (module := sys.modules.get(name)) is not None and is_application(getattr(module, "__file__", None) or ""):
            yield module


def _is_mock(value: Any) -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


def _shown(value: Any, depth: int = DEPTH) -> str:
    """The value as text, the same for equal values; an object of a class is no more than its class."""
    if _is_mock(value):
        return repr([call for call in value.mock_calls if not call[0].rpartition(".")[2].startswith(READS)])
    if isinstance(value, LEAVES) and not isinstance(value, CONTAINERS):
        return repr(value)
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        items = ((key, each) for key, each in value.items() if each or not isinstance(value, Counter))
        return f"{{{', '.join(sorted(f'{_shown(key, depth - 1)}: {_shown(each, depth - 1)}' for key, each in items))}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_shown(each, depth - 1) for each in value))}}}"
    if isinstance(value, list | tuple | deque | array):
        return f"[{', '.join(_shown(each, depth - 1) for each in value)}]"
    return repr(bytes(value)) if isinstance(value, bytearray) else type(value).__qualname__
