"""The memory of a handler: what is seen of it, and what is put back."""

import threading
from collections.abc import Callable
from typing import Any

from outboxkit.testing.memory import Memory


def remembering(*values: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function with a closure of containers, and one that gives it another number."""
    number, items, raw, locked = 1, list(values), bytearray(b"ab"), [threading.Lock()]

    def handler() -> Any:
        return number, items, raw, locked, later

    def change() -> None:
        nonlocal number
        number += 1

    if values == ("never",):
        later = None
    return handler, change


def test_a_changed_closure_is_shown_and_put_back():
    handler, change = remembering("a")
    cells = dict(zip(handler.__code__.co_freevars, handler.__closure__ or (), strict=True))
    memory = Memory(handler)
    items, raw = cells["items"].cell_contents, cells["raw"].cell_contents
    assert memory.state() == {}
    change()
    items.append("b")
    raw.extend(b"c")
    (changed,) = memory.state().values()
    assert {row["name"]: row["value"] for row in changed} == {
        "number": "2", "items": "['a', 'b']", "raw": "b'abc'",
    }  # fmt: skip
    memory.restore()
    assert memory.state() == {}
    assert (cells["number"].cell_contents, items, raw) == (1, ["a"], bytearray(b"ab"))
    assert cells["items"].cell_contents is items


def test_containers_are_compared_to_some_depth():
    deep: list[Any] = ["x"]
    for _ in range(8):
        deep = [deep]
    handler, _ = remembering(deep)
    memory = Memory(handler)
    deep[0][0][0][0][0][0][0][0][0] = "y"
    assert memory.state() == {}


def test_a_value_that_cannot_be_copied_deeply_is_put_back_all_the_same():
    handler, _ = remembering()
    locked = dict(zip(handler.__code__.co_freevars, handler.__closure__ or (), strict=True))["locked"].cell_contents
    memory = Memory(handler)
    (lock,) = locked
    locked.clear()
    assert memory.state() != {}
    memory.restore()
    assert locked == [lock]


def test_a_function_of_no_module_has_no_variables_but_its_own():
    def handler() -> None: ...

    handler.__module__ = "nowhere.at.all"
    memory = Memory(handler)
    handler.seen = [1]  # type: ignore[attr-defined]
    assert list(memory.state()) == ["variables of the function"]
