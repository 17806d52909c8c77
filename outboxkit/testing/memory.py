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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from typing import Any

from outboxkit.testing.outside import is_application

CONTAINERS = (list, tuple, dict, set, deque, bytearray, array)
"""With their subclasses, such as `Counter` and `defaultdict`."""
LEAVES = (bool, int, float, complex, Decimal, str, bytes, type(None), itertools.count, io.IOBase, *CONTAINERS)
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
    names. Objects in these objects count, too, and so do closures, defaults and its own attributes, and what a
    consumer's wiring gives to its parameters.
    """

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any] | None = None) -> None:
        self._function: Any = getattr(function, "__wrapped__", function)
        self._given = given or {}
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
        roots = {f"its {kind}": held for kind, held in _held(self._function).items()}
        roots["its parameters"] = self._given
        roots |= {"the function": vars(self._function)} | {each.__name__: vars(each) for each in self._modules}
        for label, variables in roots.items():
            yield from self._walk(label, variables, OBJECTS_DEPTH, known)

    def _walk(self, label: str, variables: Mapping[str, Any], depth: int, known: set[int]) -> Iterator[tuple[str, Any]]:
        """The variables, and those of the objects and functions in them."""
        for name, value in list(variables.items()):
            place = f"{label}.{name}"
            if name.startswith("__"):
                continue
            if isinstance(value, LEAVES) or _is_mock(value):
                yield place, value
            elif id(value) not in known and depth > 0:
                known.add(id(value))
                for inner, held in self._parts(place, value):
                    yield from self._walk(inner, held, depth - 1, known)

    def _parts(self, place: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The variables that a value holds, under the name that a report has for it."""
        if isinstance(value, QUEUES):  # its own numbers only grow
            yield place, {name: held for name, held in vars(value).items() if isinstance(held, deque)}
        elif isinstance(value, types.FunctionType):
            if is_application(value.__code__.co_filename):
                yield from ((f"the {kind} of {place}", held) for kind, held in _held(value).items())
        elif isinstance(value, types.ModuleType):
            if value not in self._modules:
                yield value.__name__, {name: held for name, held in vars(value).items() if _is_mock(held)}
        elif _has_variables(value, self._packages):
            yield place, _variables_of(value)


def _held(function: types.FunctionType) -> dict[str, Mapping[str, Any]]:
    """The variables of a function's closure, and the defaults of its parameters."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return {
        "closure": {name: cell.cell_contents for name, cell in cells if cell != types.CellType()},  # an empty one
        "defaults": {str(number): value for number, value in enumerate(defaults)},
    }


def _variables_of(value: Any) -> Mapping[str, Any]:
    """The attributes of an object, also those in slots."""
    members = (member for cls in type(value).__mro__ for member in vars(cls).items())
    slots = (name for name, kind in members if isinstance(kind, types.MemberDescriptorType) and hasattr(value, name))
    return {name: getattr(value, name) for name in slots} | getattr(value, "__dict__", {})


def _has_variables(value: Any, packages: set[str]) -> bool:
    """Whether it is a class of these packages or an object of one, and no table, event or kind."""
    cls = value if isinstance(value, type) else type(value)
    if (getattr(cls, "__module__", None) or "").partition(".")[0] not in packages or issubclass(cls, Enum):
        return False
    if isinstance(value, type):
        return not hasattr(value, "__mapper__") and not hasattr(value, "metadata")
    return hasattr(value, "__dict__") or hasattr(value, "__slots__")


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
