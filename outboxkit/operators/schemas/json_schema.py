"""JSON Schema (draft 2020-12) of an event class: what its instances look like in a payload. Pure."""

import json
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
from msgspec import inspect

from outboxkit.codec import payloads, pydantic_models
from outboxkit.events import declaration_of, is_pydantic

Schema = dict[str, Any]
DEFINITIONS = "#/$defs/"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
EVENT = "x-outboxkit"
"""The keyword under which a schema says which event it is of: its type, version and earlier names."""


def json_schema(cls: type) -> Schema:
    """The schema of an event class, from its fields; classes nested in it are under `$defs`.

    Raises:
        ConfigurationError: the class is not an event, or no payload could be decoded to it.
    """
    declaration = declaration_of(cls)
    payloads.check_event_class(cls)
    schema = _of_pydantic(cls) if is_pydantic(cls) else _of_msgspec(cls)
    about = {"type": declaration.name, "version": declaration.version, "aliases": list(declaration.aliases)}
    return {"$schema": DIALECT, EVENT: about, **_inlined(schema)}


def dereference(schema: Schema, root: Schema) -> Schema:
    """The schema itself, or the one that it refers to under the root's `$defs`.

    Raises:
        ValueError: a reference leads in a circle.
    """
    for _ in range(len(root.get("$defs", ())) + 1):
        name = schema.get("$ref")
        if not isinstance(name, str) or not name.startswith(DEFINITIONS):
            return schema
        schema = root["$defs"][name.removeprefix(DEFINITIONS)]
    raise ValueError("a $ref leads in a circle")


def _of_pydantic(cls: Any) -> Schema:
    adapter = sys.modules["pydantic"].TypeAdapter(cls)
    by_alias = pydantic_models.names_of(cls).by_alias is not False
    schema: Schema = adapter.json_schema(mode="serialization", by_alias=by_alias)
    return schema


def _of_msgspec(cls: type) -> Schema:
    nested: Schema = {}

    def of_nested(each: type) -> Schema:  # a class of pydantic: any other one has been refused
        schema = _of_pydantic(each)
        nested.update(schema.pop("$defs", {}))
        return schema

    schema = msgspec.json.schema(cls, schema_hook=of_nested)
    _name_times(schema, inspect.type_info(cls), schema.get("$defs", {}), set())
    return {**schema, "$defs": {**schema.get("$defs", {}), **nested}}


def _name_times(schema: Schema, type_: Any, definitions: Schema, done: set[str]) -> None:
    """Add the formats of moments and times, which msgspec leaves out: they would look like any other text."""
    if isinstance(name := schema.get("$ref"), str):
        if name in done:
            return
        done.add(name)
        schema = definitions[name.removeprefix(DEFINITIONS)]
    if isinstance(type_, inspect.DateTimeType | inspect.TimeType):
        schema.setdefault("format", "date-time" if isinstance(type_, inspect.DateTimeType) else "time")
    for inner, inner_type in _inside(schema, type_, definitions):
        _name_times(inner, inner_type, definitions, done)


def _inside(schema: Schema, type_: Any, definitions: Schema) -> Iterator[tuple[Schema, Any]]:
    """The schemas inside another one, each with msgspec's type of it."""
    properties = schema.get("properties", {})
    for field in getattr(type_, "fields", ()):
        if field.encode_name in properties:
            yield properties[field.encode_name], field.type
    for keyword, name in (("items", "item_type"), ("additionalProperties", "value_type")):
        if hasattr(type_, name) and isinstance(schema.get(keyword), dict):
            yield schema[keyword], getattr(type_, name)
    yield from zip(schema.get("prefixItems", ()), getattr(type_, "item_types", ()), strict=False)
    for alternative, member in product(schema.get("anyOf", ()), getattr(type_, "types", ())):
        if _is_of(alternative, member, definitions):
            yield alternative, member


def _is_of(alternative: Schema, member: Any, definitions: Schema) -> bool:
    """Whether an alternative is that of this member of a union, of which msgspec allows one for each JSON type."""
    if isinstance(name := alternative.get("$ref"), str):
        title = definitions[name.removeprefix(DEFINITIONS)].get("title")
        return hasattr(member, "fields") and getattr(member.cls, "__name__", None) == title
    kind, has = alternative.get("type"), {"array": ("item_type", "item_types"), "object": ("value_type",)}
    if kind == "string":
        return isinstance(member, inspect.DateTimeType | inspect.TimeType) and "format" not in alternative
    return any(hasattr(member, name) for name in has.get(str(kind), ()))


def _inlined(schema: Schema) -> Schema:
    """The schema with its root in place, unless something in it refers to its root."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and json.dumps(schema).count(json.dumps(reference)) == 1:
        root = dereference(schema, schema)
        schema = {**root, "$defs": {name: each for name, each in schema["$defs"].items() if each is not root}}
    return {name: each for name, each in schema.items() if name != "$defs" or each}
