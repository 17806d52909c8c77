"""Keywords of JSON Schema that are read here, and the values that they may have. Pure.

A committed file may have been edited, merged or damaged, and a class may write keywords of its own into its schema.
What passes this check can be compared, and gives examples, without an error and in a bounded time.
"""

from collections.abc import Callable, Iterator
from typing import Any

from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable

DEFINITIONS = "#/$defs/"
DEEPEST = 100
"""The most schemas inside one another in a file, and the most references that lead to one another."""
Schema = dict[str, Any]

_NAMES = ("string", "integer", "number", "boolean", "null", "object", "array")
_UNIONS = ("anyOf", "oneOf", "allOf")
_OBJECTS_OF_SCHEMAS = ("properties", "patternProperties", "$defs")


def check_schema(schema: Schema, source: str, cure: str) -> None:
    """Check that a schema can be read.

    Args:
        schema: it, with its definitions.
        source: what has it, for the error.
        cure: what to do about an error.

    Raises:
        ConfigurationError: a keyword has a value that is not accepted, a reference leads nowhere or in a circle.
    """
    try:
        _check(schema, schema, "", 0)
        _check_circles(schema)
    except _Refused as error:
        place, value, accepted = error.args
        shown = printable(repr(value), 60)
        where = printable(place, 100) or "its top"
        raise ConfigurationError(f"{source}: at {where} is {shown}; {accepted} is accepted. {cure}") from None
    except RecursionError:
        raise ConfigurationError(f"{source} is nested too deeply. {cure}") from None


class _Refused(Exception):
    """A value at a place is not accepted; with what is accepted instead."""


def _check(schema: object, root: Schema, place: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _Refused(place, schema, "a schema, which is an object or a boolean,")
    if depth > DEEPEST:
        raise _Refused(place, schema, f"a depth of at most {DEEPEST} schemas")
    for keyword, value in schema.items():
        here = f"{place}/{keyword}"
        if keyword in _ACCEPTED:
            accepts, accepted = _ACCEPTED[keyword]
            if not accepts(value):
                raise _Refused(here, value, accepted)
        for name, inner in _inner(keyword, value):
            _check(inner, root, f"{here}{name}", depth + 1)
    target = _definition_of(schema)
    if target is not None and target not in root.get("$defs", {}):
        raise _Refused(f"{place}/$ref", schema["$ref"], "the name of a schema under $defs")


def _inner(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The schemas in a keyword's value, each with its place there."""
    if keyword in _OBJECTS_OF_SCHEMAS:
        yield from ((f"/{name}", each) for name, each in value.items())
    elif keyword in (*_UNIONS, "prefixItems"):
        yield from ((f"/{index}", each) for index, each in enumerate(value))
    elif keyword in ("items", "additionalProperties", "not", "propertyNames"):
        yield "", value


def _definition_of(schema: Schema) -> str | None:
    """The name of the definition that a schema refers to; None if it refers to none."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(DEFINITIONS):
        return reference.removeprefix(DEFINITIONS)
    return None


def _check_circles(root: Schema) -> None:
    """Refuse definitions that are, through references and unions alone, themselves."""
    definitions, done = root.get("$defs", {}), set[str]()

    def follow(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise _Refused(f"/$defs/{name}", definitions[name], "a schema that does not refer to itself in a circle")
        if len(path) > DEEPEST:
            raise _Refused(f"/$defs/{name}", definitions[name], f"a chain of at most {DEEPEST} references")
        if name not in done:
            for each in _targets(definitions[name]):
                follow(each, (*path, name))
            done.add(name)

    for name in definitions:
        follow(name, ())


def _targets(schema: object) -> Iterator[str]:
    """The names of the definitions that a schema is, through its reference and the members of its unions."""
    if isinstance(schema, dict):
        name = _definition_of(schema)
        if name is not None:
            yield name
        for keyword in _UNIONS:
            for member in schema.get(keyword, ()):
                yield from _targets(member)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_filled_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(each, str) and each in _NAMES for each in names)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_ACCEPTED: dict[str, tuple[Callable[[object], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(_NAMES)}, or a list of them,"),
    "required": (_are_names, "a list of field names"),
    "enum": (_is_filled_list, "a list of values"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "prefixItems": (_is_list, "a list of schemas"),
    **dict.fromkeys(_OBJECTS_OF_SCHEMAS, (_is_object, "an object of schemas")),
    **dict.fromkeys(_UNIONS, (_is_filled_list, "a list of schemas")),
    **dict.fromkeys(("$ref", "format", "pattern", "title", "contentEncoding"), (_is_text, "a text")),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), (_is_number, "a number")
    ),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (_is_count, "a whole number from 0 on"),
    ),
}
