"""What an event class takes in memory, beside the bytes of its JSON."""

import tracemalloc
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from outboxkit.codec import payloads
from outboxkit.consumer.growth import GROWTH, counter, heaviest

MANY = 10_000


class Colour(Enum):
    RED = "red"


@dataclass
class Plain:
    number: int = 0
    text: str = "a default that all instances share"


@dataclass
class Many:
    one: list[int] = field(default_factory=list)
    two: dict[str, int] = field(default_factory=dict)
    three: set[int] = field(default_factory=set)


@dataclass
class Required:
    a: UUID
    b: datetime
    c: Colour
    d: int | None
    e: Plain
    more: Many = field(default_factory=Many)
    again: Many = field(default_factory=Many)


class Short(msgspec.Struct, array_like=True):
    one: set[int] = set()


class Tagged(msgspec.Struct, tag=True):
    one: set[int] = set()
    two: set[int] = set()
    three: set[int] = set()
    four: set[int] = set()


class Model(BaseModel):
    number: int = 0


class Nested(BaseModel):
    rows: list[Model]


@dataclass
class Checked:
    number: int
    one: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.number < 5:
            raise ValueError("less than five")


def taken(row: Any, unit: bytes) -> float:
    """The bytes of memory that one of many such rows takes."""
    rows: Any = list[row]
    payloads.read(rows, b"[]")
    tracemalloc.start()
    try:
        kept = payloads.read(rows, b"[" + unit * MANY + unit.rstrip(b",") + b"]")
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("row", "unit"),
    [
        (Many, b"{},"),
        (Short, b"[],"),
        (Tagged, b'{"type":"Tagged"},'),
        (
            Required,
            b'{"a":"00000000-0000-0000-0000-000000000000","b":"2000-01-01T00:00:00Z","c":"red","d":0,"e":{}},',
        ),
    ],
)
def test_a_class_weighs_what_its_instances_take(row: Any, unit: bytes):
    event = msgspec.defstruct("Event", [("rows", list[row])])
    found = heaviest(event)
    assert found is not None
    assert found.opening == unit[:1]
    assert found.size == pytest.approx(taken(row, unit) if row is not Required else taken(Many, b"{},"), rel=0.4)


def test_a_pydantic_model_has_a_dictionary_and_a_set():
    found = heaviest(Nested)
    assert found is not None
    assert found.size > 100 * len("{},")


@pytest.mark.parametrize("cls", [Plain, msgspec.defstruct("Event", [("rows", Any)]), Checked])
def test_others_are_no_heavier_than_plain_objects(cls: Any):
    assert heaviest(cls) is None
    assert counter([cls]) is len


def test_a_part_counts_as_its_bytes_or_as_its_instances():
    count = counter([Plain, msgspec.defstruct("Event", [("rows", list[Many])])])
    found = heaviest(Many)
    assert found is not None
    assert count(b"{}," * 1000) == 1000 * found.size // GROWTH > 3000
    assert count(b'{"text":"' + b"x" * 1000 + b'"}') == 1011
