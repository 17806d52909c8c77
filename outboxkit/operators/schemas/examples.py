"""Example documents of a schema, and what upcasts make of them. Pure.

Upcasts are tried with two documents of each older version: one with all its fields, one with as few as it may have.
Their values are made up, so an upcast may refuse them. Only a failure that no value would cure is reported.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from outboxkit.codec import upcasts
from outboxkit.errors import DecodeError, EncodeError
from outboxkit.events import declaration_of
from outboxkit.message import Message
from outboxkit.operators.schemas.json_schema import NOTHING, dereference
from outboxkit.operators.schemas.keywords import Schema

_DEEPEST = 12
_MOST_STEPS = 10_000
"""The most schemas that are tried for one document."""
_LONGEST = 1_000
"""The longest text and list that is made."""
_TEXTS = {
    "date-time": "2026-01-02T03:04:05Z",
    "date": "2026-01-02",
    "time": "03:04:05",
    "duration": "PT1S",
    "uuid": "01890a5d-ac96-774b-bcce-b302099a8057",
    "decimal": "1",
    "email": "a@example.com",
    "uri": "https://example.com/",
    "base64": "AAAA",
    "binary": "AAAA",
}
_GUESSES = ("1", "text", "A", "AAA", *_TEXTS.values())


class _NoExample(Exception):
    """No value is known that the schema accepts."""


def examples_of(schema: Schema) -> Iterator[Any]:
    """Documents that the schema accepts: with all fields, and with required ones only. None if none is known."""
    for is_full in (True, False):
        try:
            yield _Examples(schema, is_full=is_full).of(schema, 0)
        except (_NoExample, ArithmeticError):  # the latter: a number that is too large to calculate with
            continue


def failed_upcast(cls: type, version: int, schema: Schema) -> tuple[str, Any] | None:
    """The failure of the upcasts of `cls` for documents of `version`, with the document; None if they work.

    Args:
        cls: an event class with all its upcasts.
        version: an older one.
        schema: that of this version.
    """
    for document in examples_of(schema):
        try:
            payload = msgspec.json.encode(document)
        except (ValueError, ArithmeticError):  # a listed value that no payload can have
            continue
        message = Message(id="example", type=declaration_of(cls).name, payload=payload, version=version)
        try:
            upcasts.event_of(cls, message)
        except DecodeError as error:
            if _is_certain(error.__cause__, document):
                return str(error), document
    return None


def _is_certain(cause: BaseException | None, document: Any) -> bool:
    """Whether an upcast that failed for this reason fails for every document with these fields."""
    if cause is None or isinstance(cause, EncodeError):
        return True
    if isinstance(cause, KeyError):  # of a field; the key of a table of values is one of the made-up values
        return not (cause.args and cause.args[0] in list(_values(document)))
    errors = getattr(cause, "errors", None)
    if callable(errors):
        return any(
            each["type"] == "missing" or (each["type"].endswith("_type") and each.get("input") is not None)
            for each in errors()
        )
    text = str(cause)
    return isinstance(cause, msgspec.ValidationError) and (
        "missing required field" in text or (", got `" in text and "got `null`" not in text)
    )


def _values(document: Any) -> Iterator[Any]:
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    for each in inner:
        yield from _values(each)
    if not isinstance(document, dict | list):
        yield document


class _Examples:
    """One document; `is_full` if it has all fields, items and values that may be missing."""

    def __init__(self, root: Schema, *, is_full: bool) -> None:
        self._root, self._is_full, self._steps = root, is_full, 0

    def of(self, schema: Schema, depth: int) -> Any:
        """A value that the schema accepts."""
        schema = dereference(schema, self._root)
        self._steps += 1
        if depth > _DEEPEST or self._steps > _MOST_STEPS or schema is NOTHING:
            raise _NoExample
        if values := [schema["const"]] if "const" in schema else schema.get("enum"):
            return values[0]
        kinds = schema.get("type", "string")
        members = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if members or isinstance(kinds, list):
            return self._of_one(members or [{**schema, "type": kind} for kind in kinds], depth)
        if kinds in ("object", "array"):
            return (self._object if kinds == "object" else self._array)(schema, depth)
        plain = {"null": None, "boolean": True}
        return plain[kinds] if kinds in plain else (_text if kinds == "string" else _number)(schema)

    def _of_one(self, members: list[Schema], depth: int) -> Any:
        """A value of the first alternative that has one; null comes first if little is count."""
        nulls = [each for each in members if isinstance(each, dict) and each.get("type") == "null"]
        others = [each for each in members if each not in nulls]
        for member in (*others, *nulls) if self._is_full and depth < _DEEPEST // 2 else (*nulls, *others):
            try:
                return self.of(member, depth + 1)
            except _NoExample:
                continue
        raise _NoExample

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        required, document = set(schema.get("required", ())), {}
        for name, inner in schema.get("properties", {}).items():
            try:
                if name in required or (self._is_full and depth < _DEEPEST // 2):
                    document[name] = self.of(inner, depth + 1)
            except _NoExample:
                if name in required:
                    raise
        if schema.get("minProperties", 0) > len(document):
            raise _NoExample
        return document

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        fixed = [self.of(each, depth + 1) for each in schema.get("prefixItems", ())]
        count = max(schema.get("minItems", 0), int(self._is_full and depth < _DEEPEST // 2))
        if isinstance(schema.get("items"), dict) and count > len(fixed):
            if (schema.get("uniqueItems") and count - len(fixed) > 1) or count > _LONGEST:
                raise _NoExample
            fixed += [self.of(schema["items"], depth + 1)] * (count - len(fixed))
        return fixed


def _text(schema: Schema) -> str:
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", _LONGEST)
    if shortest > _LONGEST:
        raise _NoExample
    form, pattern = schema.get("format") or schema.get("contentEncoding"), schema.get("pattern")
    guesses = [_TEXTS[form]] if form in _TEXTS else [*_GUESSES, "A" * shortest, ""]
    for guess in guesses:
        if shortest <= len(guess) <= longest and (pattern is None or _matches(pattern, guess)):
            return guess
    raise _NoExample


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


def _number(schema: Schema) -> int | float:
    lowest = max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
    number: int | float = min(lowest, schema.get("maximum", lowest), schema.get("exclusiveMaximum", lowest + 1) - 1)
    step = schema.get("multipleOf")
    return number if not step else -(-number // step) * step
