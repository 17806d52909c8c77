"""Documents made from schemas, and upcasts that are tried with them."""

import json
from typing import Any

import pytest

from outboxkit.codec import payloads
from outboxkit.operators.schemas import json_schema
from outboxkit.operators.schemas.examples import examples_of, failed_upcast
from tests.unit.operators.schemas.releases import event_with, release

FIELDS = """
number: int
total: Decimal
at: datetime
day: date
hour: time
id: UUID
kind: Literal["a", "b"]
small: Annotated[int, msgspec.Meta(ge=3, lt=5)]
code: Annotated[str, msgspec.Meta(min_length=4, max_length=6)]
names: list[str]
pairs: tuple[int, str]
by_name: dict[str, int]
maybe: int | None
data: bytes
more: list[dict[str, float]] = field(default_factory=list)
note: str | None = None
flag: bool = False
"""
OLD = "number: int\nprice: str\nnote: str | None = None"
NEW = """
@upcast("Shipped", 1)
def step(document):
    {}

@event("Shipped", version=2)
@dataclass
class Shipped:
    number: int
    total: Decimal
    note: str | None = None
"""


MODELS = """
class Line(pydantic.BaseModel):
    price: Decimal
    at: datetime | None

@event("Shipped")
class Shipped(pydantic.BaseModel):
    lines: Annotated[list[Line], pydantic.Field(min_length=2)]
    by_id: dict[UUID, Line]
    code: Annotated[str, pydantic.Field(pattern="^[A-Z]+$")]
    kind: Literal["a", "b"] = "a"
    parent: "Shipped | None" = None
"""
STRUCT = """
class Leaf(msgspec.Struct, tag=True):
    size: Annotated[float, msgspec.Meta(gt=2)]

@event("Shipped")
class Shipped(msgspec.Struct, array_like=True):
    leaf: Leaf | None
    inner: list["Shipped"] = []
"""
EVENTS = [event_with(FIELDS), release(MODELS).Shipped, release(STRUCT).Shipped]


@pytest.mark.parametrize("cls", EVENTS, ids=["dataclass", "pydantic", "msgspec"])
def test_a_document_made_from_a_schema_is_an_event(cls: Any):
    documents = list(examples_of(json_schema(cls)))
    assert documents
    for document in documents:
        payloads.decode(cls, json.dumps(document).encode())


def test_one_document_has_all_fields_and_one_the_required_ones():
    full, bare = examples_of(json_schema(event_with(FIELDS)))
    assert set(full) - set(bare) == {"more", "note", "flag"}
    assert (full["maybe"], bare["maybe"], full["note"], bare["names"]) == (1, None, "1", [])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "string", "minLength": 10**12},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**12},
        {"type": "integer", "minimum": 10**400, "multipleOf": 0.5},
        {"type": "string", "pattern": "("},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/A"}}}},
    ],
)
def test_a_schema_without_a_known_example_is_left_out(schema: dict[str, Any]):
    assert list(examples_of(schema)) == []


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("document['total'] = document.pop('price')", "step returned None; it must return the document of version 2"),
        ("return document", "missing required field `total`"),
        ("return {'total': document['price']}", "missing required field `number`"),
        ("return document | {'total': document['cost']}", "step has failed on version 1: KeyError: 'cost'"),
        ("return document | {'total': document['price'] + document['note']}", "KeyError: 'note'"),
        ("return document | {'total': '1', 'number': 'one'}", "Expected `int`, got `str`"),
        ("return document | {'total': object()}", "has no JSON form"),
    ],
)
def test_a_fault_that_no_value_cures_is_found(body: str, failure: str):
    error, document = failed_upcast(release(NEW.format(body)).Shipped, 1, schema_of_old()) or ("", {})
    assert failure in error
    assert document["number"] == 1


@pytest.mark.parametrize(
    "body",
    [
        "return document | {'total': document['price']}",
        "return document | {'total': {'cheap': 1}[document['price']]}",
        "return document | {'total': {'cheap': 1}.get(document['price'])}",
        "return document | {'total': document['price'].split(' ')[1]}",
        "return document | {'total': 'many ' + document['price']}",
        "raise ValueError('no such price')",
    ],
)
def test_an_upcast_may_refuse_values_that_are_made_up(body: str):
    assert failed_upcast(release(NEW.format(body)).Shipped, 1, schema_of_old()) is None


@pytest.mark.parametrize(("total", "failure"), [("total: int", "total: Field required"), ("total: int = 1", None)])
def test_a_pydantic_model_is_tried_too(total: str, failure: str | None):
    source = f"@event('Shipped', version=2)\nclass Shipped(pydantic.BaseModel):\n    number: int\n    {total}\n"
    cls = release(f"{source}@upcast('Shipped', 1)\ndef step(document):\n    return document\n").Shipped
    found = failed_upcast(cls, 1, schema_of_old())
    assert found is None if failure is None else found is not None and failure in found[0]


def schema_of_old() -> dict[str, Any]:
    return json_schema(event_with(OLD))


@pytest.mark.parametrize(
    ("schema", "examples"),
    [
        ({"anyOf": [False, {"const": 3}]}, [3]),
        ({"anyOf": [False, {"type": "string", "pattern": "("}]}, []),
        ({"type": "object", "properties": {"a": False, "b": {"const": 1}}}, [{"b": 1}, {}]),
        ({"type": "object", "minProperties": 2, "properties": {"b": {"const": 1}}}, []),
        ({"type": "object", "minProperties": 1, "properties": {"b": {"const": 1}}}, [{"b": 1}]),
        ({"type": "array", "uniqueItems": True, "minItems": 2, "items": {"type": "integer"}}, []),
    ],
)
def test_what_has_no_example_is_left_out_of_the_document(schema: dict[str, Any], examples: list[Any]):
    made = list(examples_of(schema))
    assert [each for index, each in enumerate(made) if each not in made[:index]] == examples


def test_a_listed_value_that_no_payload_can_have_is_not_tried():
    cls = release(NEW.format("raise KeyError('number')")).Shipped
    schema = {"type": "object", "properties": {"number": {"const": "\ud800"}}, "required": ["number"]}
    assert failed_upcast(cls, 1, schema) is None
    assert failed_upcast(cls, 1, schema | {"properties": {"number": {"const": 10}}}) is not None
