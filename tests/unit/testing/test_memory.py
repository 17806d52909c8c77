"""The memory of a handler: the variables that it reaches, and their values as text."""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from outboxkit.testing.memory import Memory
from tests.integration.kit import kit_counters

TOTAL = Decimal(0)
JOBS: queue.Queue[int] = queue.Queue()
LATER: asyncio.Queue[int] = asyncio.Queue()


class Mailer:
    handled = 0

    def __init__(self) -> None:
        self.sent: list[int] = []


class Desk:
    def __init__(self) -> None:
        self.mailer = Mailer()


@dataclass(slots=True)
class Slotted:
    count: int = 0


DESK, SLOTTED = Desk(), Slotted()


def add_to_total() -> None:
    global TOTAL  # noqa: PLW0603
    TOTAL += 1


def remember(number: int, numbers: list[int] = []) -> None:  # noqa: B006
    numbers.append(number)


def counting() -> Callable[[], None]:
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    return count


count = counting()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (add_to_total, "test_memory.TOTAL"),
        (lambda: JOBS.put(1), "test_memory.JOBS.queue"),
        (lambda: LATER.put_nowait(1), "test_memory.LATER._queue"),
        (lambda: DESK.mailer.sent.append(1), "test_memory.DESK.mailer.sent"),
        (lambda: setattr(Mailer, "handled", 1), "test_memory.Mailer.handled"),
        (lambda: setattr(SLOTTED, "count", 1), "test_memory.SLOTTED.count"),
        (lambda: remember(1), f"the defaults of {__name__}.remember.0"),
        (count, f"the closure of {__name__}.count.counted"),
        (kit_counters.bump, "kit_counters.COUNT"),
    ],
    ids=lambda value: value if isinstance(value, str) else "of",
)
def test_a_changed_variable_is_seen(change: Callable[[], None], name: str):
    def handler() -> None: ...

    memory = Memory(handler, {})
    before = memory.state()
    change()
    after = memory.state()
    (changed,) = (each for each in after if after[each] != before.get(each))
    assert changed.endswith(name)


def test_a_changed_closure_is_seen_and_deep_containers_to_some_depth():
    number, items, raw = 1, ["a"], bytearray(b"ab")
    deep: list[Any] = ["x"]
    for _ in range(8):
        deep = [deep]
    lock = [threading.Lock()]

    def handler() -> Any:
        return number, items, raw, deep, lock

    before = Memory(handler, {}).state()
    number += 1
    items.append("b")
    raw.extend(b"c")
    deep[0][0][0][0][0][0][0][0][0] = "y"
    after = Memory(handler, {}).state()
    assert {name: value for name, value in after.items() if value != before[name]} == {
        "its closure.number": "2",
        "its closure.items": "['a', 'b']",
        "its closure.raw": "bytearray(b'abc')",
    }


def test_a_function_of_no_module_has_no_variables_but_its_own():
    def handler() -> None: ...

    handler.__module__ = "nowhere.at.all"
    handler.seen = [1]  # type: ignore[attr-defined]
    assert [name for name in Memory(handler, {}).state() if "environ" not in name] == ["the function.seen"]


def test_what_a_consumer_gives_to_the_handler_is_looked_into():
    def handler() -> None: ...

    mailer = Mailer()
    mailer.sent.append(1)
    state = Memory(handler, {"Mailer": mailer, "Slotted": Slotted(2)}).state()
    assert {name: value for name, value in state.items() if name.startswith("its parameters.")} == {
        "its parameters.Mailer.sent": "[1]",
        "its parameters.Slotted.count": "2",
    }
