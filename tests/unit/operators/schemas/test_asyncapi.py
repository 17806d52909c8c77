"""The AsyncAPI document: its structure, and that every reference in it leads somewhere.

It was validated with the official @asyncapi/parser of npm, 3.x, which is not installed here.
"""

import re
from collections.abc import Iterator
from typing import Any

from outboxkit import inbox
from outboxkit.events import declaration_of
from outboxkit.operators.schemas import events_in, json_schema
from outboxkit.operators.schemas.asyncapi import About, asyncapi
from tests.unit.operators.schemas.releases import release

SHOP = release("""
@event("Order/Placed", version=2, aliases=("OrderTaken",))
class OrderPlaced(msgspec.Struct):
    at: datetime
    pair: tuple[int, str]
    parent: "OrderPlaced | None" = None

@upcast("OrderTaken", 1)
def change(document):
    return document

class Card(msgspec.Struct, tag=True):
    number: str

class Cash(msgspec.Struct, tag=True):
    amount: Decimal

@event("Pay", destination="payments", reply="Paid")
class Pay(msgspec.Struct):
    by: Card | Cash
    discriminator: str
    properties: int = 1

@event("Paid")
class Paid(pydantic.BaseModel):
    ok: bool = True

@event("Shipped")
class Shipped(msgspec.Struct):
    number: int

@inbox_handler("shop.Book")
def book(session, event: OrderPlaced): ...

@inbox_handler("NotePaid")
def note(session, event: Paid): ...
""")


def document() -> dict[str, Any]:
    events = events_in([SHOP])
    schemas = {declaration_of(cls).name: {declaration_of(cls).version: json_schema(cls)} for cls in events}
    schemas["OrderTaken"] = {1: {"type": "object", "properties": {}}}
    return asyncapi(About("shop", "1.4", "shop-events"), events, inbox.handlers_in([SHOP]), schemas)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def resolved(root: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        root = root[part]
    return root


def test_the_document_has_the_structure_of_asyncapi_3():
    found = document()
    assert list(found) == ["asyncapi", "info", "defaultContentType", "channels", "operations", "components"]
    assert (found["asyncapi"], found["info"]) == ("3.0.0", {"title": "shop", "version": "1.4"})
    for names in (found["channels"], found["operations"], *found["components"].values()):
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)
    for operation in found["operations"].values():
        assert operation["action"] in ("send", "receive")
        channel = resolved(found, operation["channel"]["$ref"])
        assert channel in found["channels"].values()
        for message in operation.get("messages", ()):
            assert message["$ref"].startswith(f"{operation['channel']['$ref']}/messages/")


def test_what_is_sent_and_what_is_received():
    found = document()
    assert sorted(found["operations"]) == [
        "receive.NotePaid.Paid",
        "receive.shop.Book.OrderTaken",
        "receive.shop.Book.Order_2f_Placed",
        "send.Paid",
        "send.Pay",
        "send.Shipped",
    ]
    assert found["operations"]["send.Shipped"]["bindings"]["amqp"]["mandatory"] is True


def test_a_channel_is_a_routing_key_or_an_outside_system():
    channels = document()["channels"]
    assert {name: channel["address"] for name, channel in channels.items()} == {
        "Order_2f_Placed": "Order/Placed",
        "OrderTaken": "OrderTaken",
        "Pay": None,
        "Paid": "Paid",
        "Shipped": "Shipped",
    }
    binding = channels["Shipped"]["bindings"]["amqp"]
    assert (binding["is"], binding["exchange"]["name"], binding["exchange"]["type"]) == (
        "routingKey",
        "shop-events",
        "topic",
    )
    assert "bindings" not in channels["Pay"]
    assert "'payments'" in channels["Pay"]["description"]
