"""The memory of a handler: the variables that it reaches, and their values as text."""

import threading
from typing import Any

from outboxkit.testing.memory import Memory


def test_a_changed_closure_is_seen_and_deep_containers_to_some_depth():
    number, items, raw = 1, ["a"], bytearray(b"ab")
    deep: list[Any] = ["x"]
    for _ in range(8):
        deep = [deep]
    lock = [threading.Lock()]

    def handler() -> Any:
        return number, items, raw, deep, lock

    before = Memory(handler).state()
    number += 1
    items.append("b")
    raw.extend(b"c")
    deep[0][0][0][0][0][0][0][0][0] = "y"
    after = Memory(handler).state()
    assert {name: value for name, value in after.items() if value != before[name]} == {
        "its closure.number": "2",
        "its closure.items": "['a', 'b']",
        "its closure.raw": "b'abc'",
    }


def test_a_function_of_no_module_has_no_variables_but_its_own():
    def handler() -> None: ...

    handler.__module__ = "nowhere.at.all"
    handler.seen = [1]  # type: ignore[attr-defined]
    assert [name for name in Memory(handler).state() if "environ" not in name] == ["the function.seen"]


def test_what_a_consumer_gives_to_the_handler_is_looked_into():
    class Mailer:
        def __init__(self) -> None:
            self.sent: list[str] = []

    class Counter:
        __slots__ = "count"  # noqa: PLC0205 - which a handler may have

    class Hidden(Counter):
        __slots__ = ("__number",)

        def __init__(self) -> None:
            self.count, self.__number = 1, 2

    def handler() -> None: ...

    mailer = Mailer()
    mailer.sent.append("a")
    state = Memory(handler, {"Mailer": mailer, "Hidden": Hidden()}).state()
    assert {name: value for name, value in state.items() if name.startswith("its parameters.")} == {
        "its parameters.Mailer.sent": "['a']",
        "its parameters.Hidden.count": "1",
        "its parameters.Hidden._Hidden__number": "2",
    }
