"""The JSON Schema of an event class: what a payload looks like, in every kind of class."""

import json
from typing import Any

import msgspec
import pytest

from outboxkit import ConfigurationError
from outboxkit.operators.schemas import json_schema
from outboxkit.operators.schemas.json_schema import dereference
from tests.unit.operators.schemas.releases import event_with
from tests.unit.shop import CustomerMoved, OrderConfirmed, ParcelSent, StockChanged

TEXT = {"type": "string"}
TIME = {"type": "string", "format": "time"}
MOMENT = {"type": "string", "format": "date-time"}


def test_the_schema_of_a_class_says_which_event_it_is():
    cls = event_with("number: int\nnote: str | None = None", options=", version=2, aliases=('Sent',)")
    assert json_schema(cls) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "x-outboxkit": {"type": "Shipped", "version": 2, "aliases": ["Sent"]},
        "title": "Shipped",
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["number"],
    }


@pytest.mark.parametrize("cls", [OrderConfirmed, ParcelSent, StockChanged, CustomerMoved])
def test_every_kind_of_class_has_one_that_is_json(cls: type):
    found = json_schema(cls)
    assert json.loads(json.dumps(found)) == found
    assert dereference(found, found)["type"] == "object"


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("datetime", MOMENT),
        ("time", TIME),
        ("date", {"type": "string", "format": "date"}),
        ("list[datetime]", {"type": "array", "items": MOMENT}),
        ("dict[str, datetime]", {"type": "object", "additionalProperties": MOMENT}),
        ("datetime | None", {"anyOf": [MOMENT, {"type": "null"}]}),
        ("list[datetime] | None", {"anyOf": [{"type": "array", "items": MOMENT}, {"type": "null"}]}),
        ("dict[str, time] | None", {"anyOf": [{"type": "object", "additionalProperties": TIME}, {"type": "null"}]}),
        ("UUID | int", {"anyOf": [{"type": "integer"}, {"type": "string", "format": "uuid"}]}),
        ("str", TEXT),
    ],
)  # fmt: skip
def test_moments_are_told_from_other_texts(annotation: str, expected: dict[str, Any]):
    found = json_schema(event_with(f"field: {annotation}"))["properties"]["field"]
    if "anyOf" in found:
        found = {"anyOf": sorted(found["anyOf"], key=str)}
        expected = {"anyOf": sorted(expected["anyOf"], key=str)}
    assert found == expected


def test_moments_of_nested_classes_and_tuples_are_told_too():
    before = "@dataclass\nclass Stop:\n    at: datetime\n    then: 'Stop | None' = None\n"
    found = json_schema(event_with("stop: Stop\nother: Stop | None\nspan: tuple[int, datetime]", before=before))
    assert found["$defs"]["Stop"]["properties"]["at"] == MOMENT
    assert found["properties"]["span"]["prefixItems"][1] == MOMENT


def test_what_is_no_event_has_none():
    with pytest.raises(ConfigurationError, match="is not an event"):
        json_schema(msgspec.Struct)
