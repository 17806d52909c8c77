"""The memory of a handler: the variables of its modules, which outlive its transaction."""

import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from typing import Any

from outboxkit.testing.differences import State, Values

VARIABLES = "variables of "
PLAIN = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, dict, set, deque, bytearray)
"""With their subclasses, such as `Counter` and `defaultdict`."""
DEPTH = 5


class Memory:
    """The variables of the modules of a function: those that hold numbers, texts and containers.

    Modules are the function's own, and those of the same package whose modules, classes and functions it names.
    The cells of its closure count as variables, too.

    Args:
        function: the handler's.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        plain = getattr(function, "__wrapped__", function)
        self._modules = {module.__name__: module for module in _modules_of(plain)}
        self._cells = dict(_cells_of(plain))
        self._saved = {place: _copy(value) for place, value in self._values()}
        self._before = {place: _shown(value) for place, value in self._values()}

    def state(self) -> State:
        """The variables that are not as they were at the start."""
        state: dict[str, list[Values]] = {}
        now = dict(self._values())
        for (home, name), value in now.items():
            if (shown := _shown(value)) != self._before.get((home, name)):
                state.setdefault(VARIABLES + home, []).append({"name": name, "value": shown})
        return state

    def restore(self) -> None:
        """Put the variables back. Containers stay the same objects."""
        for (home, name), value in list(self._values()):
            if (home, name) not in self._saved:
                continue
            if _shown(value) != self._before[home, name]:
                self._put_back(home, name, value, _copy(self._saved[home, name]))

    def _put_back(self, home: str, name: str, value: Any, saved: Any) -> None:
        match value:
            case list() | deque() | bytearray() if type(value) is type(saved):
                value.clear()
                value.extend(saved)
            case dict() | set() if type(value) is type(saved):
                value.clear()
                value.update(saved)
            case _ if home in self._modules:
                setattr(self._modules[home], name, saved)
            case _:
                self._cells[name].cell_contents = saved

    def _values(self) -> Iterator[tuple[tuple[str, str], Any]]:
        for module in self._modules.values():
            for name, value in list(vars(module).items()):
                if not name.startswith("__") and isinstance(value, PLAIN + CONTAINERS):
                    yield (module.__name__, name), value
        for name, cell in self._cells.items():
            try:
                value = cell.cell_contents
            except ValueError:  # empty
                continue
            if isinstance(value, PLAIN + CONTAINERS):
                yield ("its closure", name), value


def _modules_of(function: Callable[..., Any]) -> Iterator[types.ModuleType]:
    own = sys.modules.get(getattr(function, "__module__", None) or "")
    if own is None:
        return
    yield own
    package = own.__name__.partition(".")[0]
    names = {own.__name__}
    for value in list(vars(own).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and module.__name__ not in names and module.__name__.partition(".")[0] == package:
            names.add(module.__name__)
            yield module


def _cells_of(function: Callable[..., Any]) -> Iterator[tuple[str, types.CellType]]:
    code = getattr(function, "__code__", None)
    if code is not None:
        yield from zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)


def _copy(value: Any) -> Any:
    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 - something in it cannot be copied
        return copy(value)


def _shown(value: Any, depth: int = DEPTH) -> str:
    """The value as text, the same for equal values; an object of a class is no more than its class."""
    match value:
        case _ if isinstance(value, PLAIN):
            text = repr(value)
        case _ if depth == 0:
            text = "…"
        case dict():
            items = ((key, each) for key, each in value.items() if each or not isinstance(value, Counter))
            texts = sorted(f"{_shown(key, depth - 1)}: {_shown(each, depth - 1)}" for key, each in items)
            text = f"{{{', '.join(texts)}}}"
        case set() | frozenset():
            text = f"{{{', '.join(sorted(_shown(each, depth - 1) for each in value))}}}"
        case list() | tuple() | deque():
            text = f"[{', '.join(_shown(each, depth - 1) for each in value)}]"
        case bytearray():
            text = repr(bytes(value))
        case _:
            text = type(value).__qualname__
    return text
