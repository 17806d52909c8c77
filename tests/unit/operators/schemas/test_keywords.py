"""Which schemas are read; a file may have been edited, merged or damaged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import ConfigurationError
from outboxkit.operators.schemas import differences, json_schema
from outboxkit.operators.schemas.asyncapi import About, asyncapi
from outboxkit.operators.schemas.examples import examples_of
from outboxkit.operators.schemas.keywords import _ACCEPTED, DEEPEST, DEFINITIONS, check_schema
from tests.unit.operators.schemas.releases import event_with, release

TREE = "a: int\nb: str | None = None\nlines: list['Shipped'] = field(default_factory=list)"
NAMES = st.sampled_from(["a", "b", "lines", "Shipped", "\ud800", ""])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
KEYWORDS = st.sampled_from([*_ACCEPTED, "items", "additionalProperties", "not", "const", "discriminator", "x"])
REFERENCES = NAMES.map(DEFINITIONS.__add__)
TYPES = st.sampled_from(["string", "integer", "null", "object", "array", ["string", "null"]])


def chain(length: int, last: Any) -> dict[str, Any]:
    links = {str(number): {"$ref": f"{DEFINITIONS}{number + 1}"} for number in range(length)}
    return {"$ref": f"{DEFINITIONS}0", "$defs": {**links, str(length): last}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": []}, r"at /properties is \[\]; an object of schemas is accepted"),
        ({"type": 5}, "at /type is 5; one of string, integer, .*, or a list of them, is accepted"),
        ({"type": ["string", "text"]}, "at /type is "),
        ({"properties": {"a": 1}}, "at /properties/a is 1; a schema, which is an object or a boolean, is accepted"),
        ({"properties": {"a": {"required": True}}}, "at /properties/a/required is True; a list of field names is"),
        ({"anyOf": [{"minimum": "1"}]}, "at /anyOf/0/minimum is '1'; a number is accepted"),
        ({"items": [{}]}, r"at /items is \[{}\]; a schema"),
        ({"anyOf": []}, r"at /anyOf is \[\]; a list of schemas"),
        ({"maxLength": -1}, "at /maxLength is -1; a whole number from 0 on"),
        ({"minimum": float("nan")}, "at /minimum is nan; a number"),
        ({"$ref": "#/$defs/A"}, r"at /\$ref is '#/\$defs/A'; the name of a schema under \$defs is accepted"),
        ({"\x1b[2J": 1, "title": []}, "at /title is "),
        ({"properties": {"\x1b": 5}}, r"at /properties/\\x1b is 5"),
        (chain(0, {"$ref": "#/$defs/0"}), r"at /\$defs/0 is .*; a schema that does not refer to itself in a circle is"),
        (chain(2, {"$ref": "#/$defs/0"}), "does not refer to itself in a circle"),
        (chain(0, {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/0"}]}), "does not refer to itself in a circle"),
        (chain(5000, {}), f"a chain of at most {DEEPEST} references"),
        (nested(DEEPEST + 1), f"a depth of at most {DEEPEST} schemas"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(schema: dict[str, Any], text: str):
    with pytest.raises(ConfigurationError, match=rf"^1\.json: .*{text}.*\. Restore it$"):
        check_schema(schema, "1.json", "Restore it")


def test_what_is_read_may_be_long_and_deep_and_contain_itself():
    for schema in (chain(DEEPEST, {}), nested(DEEPEST), json_schema(event_with(TREE)), {"properties": {"a": True}}):
        check_schema(schema, "1.json", "Restore it")
        assert differences(schema, schema) == []


def test_a_class_that_writes_something_else_into_its_schema_is_named():
    model = "class Shipped(pydantic.BaseModel):\n    a: int = pydantic.Field(json_schema_extra={'required': True})\n"
    with pytest.raises(ConfigurationError, match="JSON Schema of Shipped: at /properties/a/required is True"):
        json_schema(release(f"@event('Shipped')\n{model}").Shipped)


def almost(depth: int = 3) -> "st.SearchStrategy[Any]":
    """Schemas, with values here and there that a schema does not have."""
    if not depth:
        return PLAIN | st.just({})
    inner = st.deferred(lambda: almost(depth - 1))
    value = st.one_of(inner, TYPES, REFERENCES, st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3))
    some = st.dictionaries(KEYWORDS, value, max_size=4)
    good = st.fixed_dictionaries(
        {},
        optional={
            "$ref": REFERENCES,
            "$defs": st.dictionaries(NAMES, inner, max_size=3),
            "type": TYPES,
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "items": inner,
            "prefixItems": st.lists(inner, max_size=2),
            "enum": st.lists(PLAIN, min_size=1, max_size=2),
            "minimum": st.integers() | st.floats(),
            "multipleOf": st.integers() | st.floats(),
            "minItems": st.integers(0, 10**12),
            "minLength": st.integers(0, 10**12),
        },
    )
    return st.one_of(some, good, good, PLAIN)


@given(almost() | st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_whatever_a_file_has_it_is_refused_or_can_be_used(document: Any):
    schema = json.loads(json.dumps(document if isinstance(document, dict) else {"$defs": {"a": document}}))
    ours = json_schema(event_with(TREE))
    try:
        check_schema(schema, "1.json", "Restore it")
    except ConfigurationError:
        return
    assert differences(schema, schema) == []
    differences(schema, ours)
    differences(ours, schema)
    list(examples_of(schema))
    asyncapi(About("shop", "1", "outboxkit"), [], [], {"Shipped": {1: schema}})
