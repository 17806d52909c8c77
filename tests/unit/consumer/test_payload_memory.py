"""The room for payloads that are decoded at the same time: in turn, given back, and none is too large for ever."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from outboxkit.consumer.payload_memory import GROWTH, PayloadMemory, counter

LARGE = 100


class Place:
    """Deliveries that ask for room, and leave when they are told to."""

    def __init__(self, size: int) -> None:
        self.memory, self.stop, self.entered = PayloadMemory(size), asyncio.Event(), list[str]()
        self._ends, self._tasks = dict[str, asyncio.Event](), dict[str, asyncio.Task[bool]]()

    async def comes(self, name: str, size: int) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, size))
        await settled()

    async def _stay(self, name: str, size: int) -> bool:
        async with self.memory.room(size, self.stop) as is_there:
            if is_there:
                self.entered.append(name)
                await self._ends[name].wait()
            return is_there

    async def leaves(self, name: str) -> bool:
        self._ends[name].set()
        await settled()
        return await self._tasks[name]

    async def is_cancelled(self, name: str) -> None:
        self._tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self._tasks[name]
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_comes_first_has_room_first():
    place = Place(4 * LARGE)
    for name, size in (("a", 3), ("b", 2), ("c", 1)):
        await place.comes(name, size * LARGE)
    assert place.entered == ["a"], "c has room, and would hold up b again and again"
    assert await place.leaves("a")
    assert place.entered == ["a", "b", "c"]


async def test_one_that_is_larger_than_all_of_it_is_alone():
    place = Place(2 * LARGE)
    for name, size in (("a", 1), ("huge", 10), ("b", 1)):
        await place.comes(name, size * LARGE)
    assert place.entered == ["a"]
    await place.leaves("a")
    assert place.entered == ["a", "huge"]
    await place.leaves("huge")
    assert place.entered == ["a", "huge", "b"]


async def test_a_stop_ends_the_wait_and_nothing_is_taken():
    place = Place(LARGE)
    await place.comes("a", LARGE)
    await place.comes("b", LARGE)
    place.stop.set()
    await settled()
    assert not await place.leaves("b")
    await place.leaves("a")
    await place.comes("c", LARGE)
    assert place.entered == ["a", "c"]


@pytest.mark.parametrize("has_entered", [True, False])
async def test_who_is_cancelled_gives_its_room_back(has_entered: bool):
    place = Place(LARGE)
    await place.comes("a", LARGE)
    await place.comes("b", LARGE)
    await place.is_cancelled("a" if has_entered else "b")
    await place.comes("c", LARGE)
    assert place.entered == (["a", "b"] if has_entered else ["a"])
    await place.leaves("b" if has_entered else "a")
    assert place.entered[-1] == "c"


@dataclass
class Link:
    to: "Link | None"
    tags: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)


class Model(BaseModel):
    to: "Model | None"


@pytest.mark.parametrize(("class_", "size"), [(Link, 600), (Model, 450)])
def test_instances_within_each_other_count_as_what_they_take(class_: type[Any], size: int):
    """Each has seven bytes of the payload. The shortest document of a class has a null inside."""
    chain = b'{"to":' * 100 + b"null" + b"}" * 100
    assert counter([class_])(chain) * GROWTH > 100 * size
    assert 100 * size > len(chain) * GROWTH


def test_a_class_of_plain_fields_counts_as_its_payload():
    @dataclass
    class Plain:
        number: int
        text: str

    assert counter([Plain]) is len
