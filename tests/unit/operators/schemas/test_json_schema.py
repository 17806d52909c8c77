"""The JSON Schema of an event class: what a payload looks like, in every kind of class."""

import json
from typing import Any

import msgspec
import pytest

from outboxkit import ConfigurationError
from outboxkit.operators.schemas import json_schema
from outboxkit.operators.schemas.json_schema import changed_schemas, dereference
from tests.unit.operators.schemas.releases import event_with, release
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


def test_a_class_that_contains_itself_keeps_its_definition():
    cls = event_with("parent: 'Shipped | None' = None")
    found = json_schema(cls)
    assert found["$ref"] == "#/$defs/Shipped"
    assert dereference(found, found)["title"] == "Shipped"


def test_pydantic_inside_another_class_brings_its_definitions():
    before = (
        "class Street(pydantic.BaseModel):\n    name: str\nclass Address(pydantic.BaseModel):\n    street: Street\n"
    )
    found = json_schema(event_with("to: Address", before=before))
    assert found["properties"]["to"]["properties"]["street"] == {"$ref": "#/$defs/Street"}
    assert found["$defs"]["Street"]["properties"]["name"]["type"] == "string"


def test_pydantic_is_written_under_its_aliases():
    module = release(
        "@event('Moved')\nclass Moved(pydantic.BaseModel):\n    new_place: str = pydantic.Field(alias='newPlace')\n"
    )
    assert list(json_schema(module.Moved)["properties"]) == ["newPlace"]


def test_what_is_no_event_has_none():
    with pytest.raises(ConfigurationError, match="is not an event"):
        json_schema(msgspec.Struct)


def test_a_field_of_a_type_without_a_json_form_has_no_schema():
    with pytest.raises(ConfigurationError, match="Shipped has a field of type Path, which has no JSON form"):
        json_schema(
            release("from pathlib import Path\n@event('Shipped')\n@dataclass\nclass Shipped:\n    a: Path\n").Shipped
        )


def test_a_change_reaches_the_schemas_of_items_and_values():
    leaf = {"type": "string"}
    schema = {"type": "array", "items": {"type": "object", "additionalProperties": leaf}, "not": leaf}
    changed = changed_schemas(schema, lambda each: each | {"seen": True})
    assert changed["items"]["additionalProperties"] == changed["not"] == leaf | {"seen": True}
    assert changed["seen"] is changed["items"]["seen"] is True
