"""Events of older versions: the chain of upcasts, and what is decoded through it."""

import itertools
import json
import sys
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from types import ModuleType
from typing import Any

import msgspec
import pydantic
import pytest

from outboxkit import ConfigurationError, DecodeError, Message, NewerVersion, event, upcast
from outboxkit.codec import upcasts
from outboxkit.codec.compression import deflate
from tests.unit.shop import OrderConfirmed, message

NUMBERS = itertools.count()


@event("OrderBooked", version=3, aliases=("OrderTaken", "OrderAccepted"))
@dataclass(frozen=True)
class OrderBooked:
    order: int
    total: Decimal
    currency: str
    on: date


@upcast("OrderTaken", 1)
def rename_the_order(document: dict[str, Any]) -> dict[str, Any]:
    document["order"] = document.pop("order_id")
    return document


@upcast("OrderBooked", 2)
def add_a_currency(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"currency": "EUR", "on": date(2026, 1, 2), "total": Decimal(document["total"])}


BOOKED = OrderBooked(7, Decimal("9.50"), "EUR", date(2026, 1, 2))
VERSIONS = {
    1: {"order_id": 7, "total": "9.50"},
    2: {"order": 7, "total": "9.50"},
    3: {"order": 7, "total": "9.50", "currency": "EUR", "on": "2026-01-02"},
}


def booked(version: int, document: object = None, **more: Any) -> Message:
    payload = json.dumps(VERSIONS[version] if document is None else document).encode()
    return message(**{"type": "OrderBooked", "payload": payload, "version": version} | more)


def module_of(source: str) -> ModuleType:
    """A module with this source, as if it had been imported."""
    module = ModuleType(f"upcasts_of_a_test_{next(NUMBERS)}")
    sys.modules[module.__name__] = module
    start = "from dataclasses import dataclass\nfrom outboxkit import event, upcast\n"
    exec(start + source, vars(module))
    return module


def stored(version: int, *steps: int, more: str = "") -> type:
    """The class of an event of this version, in a module with upcasts from these versions."""
    source = f'@event("Stored", version={version})\n@dataclass\nclass Stored:\n    number: int\n'
    for index, step in enumerate(steps):
        source += (
            f'@upcast("Stored", {step})\ndef step_{index}(document):\n    return document | {{"number": {step}}}\n'
        )
    found: type = module_of(source + more).Stored
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("type_", ["OrderBooked", "OrderTaken", "OrderAccepted"])
def test_every_version_under_every_name_becomes_the_event(version: int, type_: str):
    assert upcasts.event_of(OrderBooked, booked(version, type=type_)) == BOOKED


def test_a_compressed_payload_is_inflated_before_its_upcasts():
    payload = deflate(booked(1).payload, "gzip")
    assert upcasts.event_of(OrderBooked, booked(1, payload=payload, content_encoding="gzip")) == BOOKED


def test_a_message_of_today_meets_no_upcast():
    assert upcasts.chain_of(OrderConfirmed) == ()
    assert upcasts.chain_of(OrderBooked) == (rename_the_order, add_a_currency)
    assert upcasts.event_of(OrderConfirmed, message()) == OrderConfirmed(7, Decimal("9.50"))


def test_a_newer_version_is_told_from_a_wrong_payload():
    with pytest.raises(NewerVersion, match="version 4 of 'OrderBooked', and OrderBooked here knows versions up to 3"):
        upcasts.event_of(OrderBooked, message(type="OrderBooked", version=4, payload=b"not even JSON"))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"{}", "rename_the_order has failed on version 1: KeyError: 'order_id'"),
        (b'{"order_id": 7, "total": "many"}', "add_a_currency has failed on version 2: InvalidOperation"),
        (b'{"order_id": "x", "total": "1"}', r"Expected `int`, got `str`.*\(made by .*add_a_currency from version 1\)"),
        (b"[7]", "rename_the_order has failed on version 1: TypeError"),
        (b"{", "the payload is not a valid Any: Input data was truncated"),
    ],
)
def test_a_payload_that_cannot_be_brought_up_to_date_is_undecodable(payload: bytes, text: str):
    with pytest.raises(DecodeError, match=text):
        upcasts.event_of(OrderBooked, message(type="OrderBooked", version=1, payload=payload))


def test_the_error_of_an_upcast_is_its_cause():
    with pytest.raises(DecodeError) as caught:
        upcasts.event_of(OrderBooked, booked(1, {}))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return None", r"step returned None; it must return the document of version 2"),
        ("return [document]", "Expected `object`, got `array`"),
        ("return document | {'number': object()}", "what .*step returned has no JSON form"),
        ("return document | {'number': float('nan')}", "what .*step returned has no JSON form"),
    ],
)
def test_an_upcast_returns_a_document(body: str, text: str):
    cls = stored(2, more=f'@upcast("Stored", 1)\ndef step(document):\n    {body}\n')
    with pytest.raises(DecodeError, match=text):
        upcasts.event_of(cls, message(type="Stored", payload=b'{"number": 1}'))


@pytest.mark.parametrize(("steps", "missing"), [((), "1 to 2"), ((1,), "2 to 3"), ((2,), "1 to 2")])
def test_a_missing_upcast_is_named(steps: tuple[int, ...], missing: str):
    with pytest.raises(ConfigurationError, match=f"the upcast of 'Stored' from version {missing} is missing") as caught:
        upcasts.chain_of(stored(3, *steps))
    assert f"Write @upcast('Stored', {missing[0]}) above a function of upcasts_of_a_test_" in str(caught.value)


def test_two_upcasts_of_one_version_are_refused():
    with pytest.raises(ConfigurationError, match=r"two upcasts take version 1 of 'Stored': .*step_0 and .*step_1"):
        upcasts.chain_of(stored(2, 1, 1))


class Part(pydantic.BaseModel):
    sku: str


@event("Moved", version=2)
class Moved(pydantic.BaseModel):
    part: Part
    new_place: str = pydantic.Field(alias="newPlace")


@upcast("Moved", 1)
def make_parts(document: dict[str, Any]) -> dict[str, Any]:
    return {"part": {"sku": document["sku"]}, "newPlace": document["place"]}


@event("Listed", version=2)
class Listed(msgspec.Struct, array_like=True):
    number: int
    note: str


@upcast("Listed", 1)
def add_a_note(document: Any) -> Any:
    return [*document, "none"]


@event("Rooted", version=2)
class Rooted(pydantic.RootModel[list[int]]):
    pass


@upcast("Rooted", 1)
def make_a_list(document: Any) -> Any:
    return [document]


@pytest.mark.parametrize(
    ("cls", "document", "expected"),
    [
        (Moved, {"sku": "a", "place": "b"}, Moved(part=Part(sku="a"), newPlace="b")),
        (Listed, [7], Listed(7, "none")),
        (Rooted, 7, Rooted([7])),
    ],
)
def test_every_kind_of_class_has_versions(cls: type, document: object, expected: object):
    payload = json.dumps(document).encode()
    assert upcasts.event_of(cls, message(type="any", payload=payload)) == expected


def test_an_old_document_that_is_nested_too_deeply_cannot_be_decoded():
    payload = b'{"order_id":1,"total":"9.50","more":null,"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(DecodeError, match="recursion"):
        upcasts.event_of(OrderBooked, Message(id="1", type="OrderBooked", payload=payload))
