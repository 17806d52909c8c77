"""The memory of a handler: variables, objects and mocks that outlive its transaction."""

import asyncio
import io
import itertools
import os
import queue
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from typing import Any

from outboxkit.testing.outside import is_application

CONTAINERS = (list, tuple, dict, set, frozenset, deque)
"""With their subclasses, such as `Counter` and `defaultdict`."""
VALUES = (bool, int, float, Decimal, str, bytes, bytearray, type(None), itertools.count)
DEPTH = 5
TEST = "PYTEST_CURRENT_TEST"
READS = ("get", "fetch", "read", "find", "list", "load", "query", "select", "is_", "has_", "__")
"""Names of a mock's methods that only read."""


class Memory:
    """The variables that a function can reach: those that hold numbers, texts, containers, open files and mocks.

    They are those of its module, of the classes, objects and queues there, and of the application's modules that it
    names. Objects in these objects count, too, and so do closures, defaults and its own attributes, and what a
    consumer's wiring gives to its parameters.
    """

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        own: Any = getattr(function, "__wrapped__", function)
        self._modules = list(_modules_of(own))
        held = {f"its {kind}": variables for kind, variables in _held(own).items()}
        named = {module.__name__: vars(module) for module in self._modules}
        self._roots = {**held, "its parameters": given, "the function": vars(own), **named}

    def state(self) -> dict[str, str]:
        """The variables' values as text, by their names."""
        state = {name: _text(value) for name, value in self._variables() if not isinstance(value, io.IOBase)}
        return state | {f"os.environ[{name!r}]": value for name, value in os.environ.items() if name != TEST}

    def open_files(self) -> Iterator[io.IOBase]:
        """The files that are open for writing in these variables."""
        for _, value in self._variables():
            with suppress(ValueError):  # it is detached from its buffer
                if isinstance(value, io.IOBase) and not value.closed and value.writable():
                    yield value

    def _variables(self) -> Iterator[tuple[str, Any]]:
        known: set[int] = set()
        for label, variables in self._roots.items():
            yield from self._walk(label, variables, known, depth=3)

    def _walk(self, label: str, variables: Mapping[str, Any], known: set[int], depth: int) -> Iterator[tuple[str, Any]]:
        """The variables, and those of the objects and functions in them."""
        for name, value in list(variables.items()):
            if name.startswith("__"):
                continue
            if isinstance(value, (*VALUES, *CONTAINERS, io.IOBase)) or _is_mock(value):
                yield f"{label}.{name}", value
            elif id(value) not in known and depth > 0:
                known.add(id(value))
                for inner, held in self._parts(f"{label}.{name}", value):
                    yield from self._walk(inner, held, known, depth - 1)

    def _parts(self, place: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The variables that a value holds, under the name that a report has for it."""
        if isinstance(value, queue.Queue | asyncio.Queue):  # its own numbers only grow
            yield place, {name: held for name, held in vars(value).items() if isinstance(held, deque | list)}
        elif isinstance(value, types.FunctionType):
            if is_application(value.__code__.co_filename):
                yield from ((f"the {kind} of {place}", held) for kind, held in _held(value).items())
        elif isinstance(value, types.ModuleType):
            if value not in self._modules:
                yield value.__name__, {name: held for name, held in vars(value).items() if _is_mock(held)}
        elif _has_variables(value):
            members = (member for cls in type(value).__mro__ for member in vars(cls).items())
            slots = (name for name, kind in members if isinstance(kind, types.MemberDescriptorType))
            yield place, {name: getattr(value, name, None) for name in slots} | getattr(value, "__dict__", {})


def _held(function: types.FunctionType) -> dict[str, Mapping[str, Any]]:
    """The variables of a function's closure, and the defaults of its parameters."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return {
        "closure": {name: cell.cell_contents for name, cell in cells if cell != types.CellType()},  # an empty one
        "defaults": {str(number): value for number, value in enumerate(defaults)},
    }


def _has_variables(value: Any) -> bool:
    """Whether it is a class of the application or an object of one, and no table, event or kind."""
    cls = value if isinstance(value, type) else type(value)
    is_table = isinstance(value, type) and (hasattr(value, "__mapper__") or hasattr(value, "metadata"))
    return _is_of_application(cls.__module__) and not issubclass(cls, Enum) and not is_table


def _is_of_application(module: Any) -> bool:
    return is_application(getattr(sys.modules.get(module), "__file__", None))


def _modules_of(function: Callable[..., Any]) -> Iterator[types.ModuleType]:
    """The function's module, and the application's modules that it names."""
    if (own := sys.modules.get(function.__module__)) is not None:
        yield own
        values = [value for value in vars(own).values() if not _is_mock(value)]
        named = (
            each.__name__ if isinstance(each, types.ModuleType) else getattr(each, "__module__", 0) for each in values
        )
        names = dict.fromkeys(name for name in named if isinstance(name, str) and name != own.__name__)
        yield from (sys.modules[name] for name in names if _is_of_application(name))


def _is_mock(value: Any) -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


def _text(value: Any, depth: int = DEPTH) -> str:
    """The value as text, the same for equal values; an object of a class is no more than its class."""
    if _is_mock(value):
        return repr([call for call in value.mock_calls if not call[0].rpartition(".")[2].startswith(READS)])
    if isinstance(value, VALUES):
        return repr(value)
    if not isinstance(value, CONTAINERS):
        return type(value).__qualname__
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        items = ((key, each) for key, each in value.items() if each or not isinstance(value, Counter))
        return f"{{{', '.join(sorted(f'{_text(key, depth - 1)}: {_text(each, depth - 1)}' for key, each in items))}}}"
    parts = [_text(each, depth - 1) for each in value]
    return f"[{', '.join(sorted(parts) if isinstance(value, set | frozenset) else parts)}]"
