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


def test_every_reference_leads_somewhere():
    found = document()
    for reference in references(found):
        assert isinstance(resolved(found, reference), dict), reference
    assert "$defs" not in str(found)


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


def test_messages_have_their_versions():
    messages = document()["components"]["messages"]
    assert sorted(messages) == ["OrderTaken.1", "Order_2f_Placed.2", "Paid.1", "Pay.1", "Shipped.1"]
    headers = messages["Order_2f_Placed.2"]["headers"]
    assert headers["properties"]["outboxkit-version"] == {"type": "integer", "const": 2}
    assert headers["required"] == ["outboxkit-version"]
    assert "required" not in messages["Paid.1"]["headers"]
    assert messages["OrderTaken.1"]["bindings"]["amqp"]["messageType"] == "OrderTaken"


def test_schemas_are_in_the_words_of_draft_7():
    schemas = document()["components"]["schemas"]
    order = schemas["Order_2f_Placed.2.OrderPlaced"]["properties"]
    assert order["pair"]["items"] == [{"type": "integer"}, {"type": "string"}]
    assert (order["pair"]["additionalItems"], "prefixItems" in order["pair"]) == (False, False)
    pay = schemas["Pay.1"]["properties"]
    assert "discriminator" not in pay["by"]
    assert (pay["discriminator"], pay["properties"]["type"]) == ({"type": "string"}, "integer")
    assert [each["$ref"] for each in pay["by"]["anyOf"]] == [
        "#/components/schemas/Pay.1.Card",
        "#/components/schemas/Pay.1.Cash",
    ]
