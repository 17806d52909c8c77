"""Comparison of two schemas of one event and version: what consumers of the old one meet in the new one. Pure.

A change breaks if a message of the one may not be read by the other. Such a change is a removed or retyped field, a new
required one, or a value that is no longer accepted. A value that is accepted in addition is told, and does not break.

A schema is a choice of members: one, or those of a union, or each value of an enum. They are compared by their names.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from outboxkit.operators.schemas.json_schema import Schema, dereference

_LOWEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_HIGHEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "multipleOf", "uniqueItems")
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ANY = "any value"
_ANYTHING: Schema = {}
"""One object: pairs that were compared are known by their identity."""


class Difference(NamedTuple):
    """One difference between two schemas.

    Attributes:
        path: the field, such as `lines[].price`; empty for the event itself.
        breaking: whether a message of the one cannot be read by the other.
    """

    path: str
    text: str
    breaking: bool = True


class _Inner(NamedTuple):
    """Two schemas inside of two that are compared, and their place there."""

    path: str
    old: Schema
    new: Schema


def differences(old: Schema, new: Schema) -> list[Difference]:
    """The differences of two schemas, as `json_schema` returns them; empty if they mean the same.

    Those of outer fields come first. A class that is a part of several fields is compared once, under its first path.
    """
    found, done, waiting = list[Difference](), set[tuple[int, int]](), deque([_Inner("", old, new)])
    while waiting:
        path, one, other = waiting.popleft()
        one, other = dereference(one, old), dereference(other, new)
        if (id(one), id(other)) not in done:
            done.add((id(one), id(other)))
            for each in _compare(_members(one, old), _members(other, new)):
                inner = each._replace(path=f"{path}{each.path}" if path else each.path.removeprefix("."))
                waiting.append(inner) if isinstance(inner, _Inner) else found.append(inner)
    return found


def _compare(before: dict[str, Schema], after: dict[str, Schema]) -> Iterator[Difference | _Inner]:
    """The differences of two choices, and the pairs inside them. Paths begin here."""
    classes = [[name for name, each in side.items() if each.get("type") == "object"] for side in (before, after)]
    if len(classes[0]) == len(classes[1]) == 1:  # a class may get another name
        after = {classes[0][0] if name == classes[1][0] else name: each for name, each in after.items()}
    accepted = {*after, *({*before} if _ANY in after else ())}
    lost = [name for name, each in before.items() if name not in accepted and _type_of_value(each) not in after]
    gained = [name for name in after if name not in before]
    if lost and not before.keys() & after.keys():
        yield Difference("", f"was {' or '.join(before)}, and is {' or '.join(after)}")
    else:
        yield from (Difference("", f"no longer accepts {name}") for name in lost)
        yield from (Difference("", f"also accepts {name}", breaking=False) for name in gained)
    for name in (name for name in before if name in after):
        one, other = before[name], after[name]
        if len(before) == len(after) == 1:
            yield from (*_constraints(one, other), *_compare_fields(one, other), *_compare_items(one, other))
        elif "const" not in one:
            yield _Inner("", one, other)


def _compare_fields(old: Schema, new: Schema) -> Iterator[Difference | _Inner]:
    before, after = old.get("properties", {}), new.get("properties", {})
    was_required, required = set(old.get("required", ())), set(new.get("required", ()))
    for name in before:
        if name not in after:
            yield Difference(f".{name}", "was removed")
            continue
        if name in required - was_required:
            yield Difference(f".{name}", "was optional, and is required")
        elif name in was_required - required:
            yield Difference(f".{name}", "was required, and is optional", breaking=False)
        yield _Inner(f".{name}", before[name], after[name])
    for name in after:
        if name not in before:
            kind = "a new required field" if name in required else "a new optional field"
            yield Difference(f".{name}", f"is {kind}", breaking=name in required)
    more, more_now = old.get("additionalProperties", True), new.get("additionalProperties", True)
    if isinstance(more, dict) and isinstance(more_now, dict):
        yield _Inner("{}", more, more_now)
    elif more_now is False and more is not False:
        yield Difference("", "refuses fields that it does not know")


def _compare_items(old: Schema, new: Schema) -> Iterator[Difference | _Inner]:
    before, after = old.get("prefixItems", ()), new.get("prefixItems", ())
    if len(before) != len(after):
        yield Difference("", f"had {len(before)} items of types of their own, and has {len(after)}")
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        yield _Inner(f"[{index}]", one, other)
    items, items_now = old.get("items", _ANYTHING), new.get("items", _ANYTHING)
    if (items or items_now) and isinstance(items, dict) and isinstance(items_now, dict):
        yield _Inner("[]", items, items_now)


def _constraints(old: Schema, new: Schema) -> Iterator[Difference]:
    for keyword in (*_LOWEST, *_HIGHEST, *_EXACT):
        before, after = old.get(keyword), new.get(keyword)
        if before == after:
            continue
        if after is None:
            yield Difference("", f"no longer has {keyword} {before!r}", breaking=False)
        elif before is None:
            yield Difference("", f"has {keyword} {after!r} now")
        else:
            is_wider = (keyword in _LOWEST and after < before) or (keyword in _HIGHEST and after > before)
            yield Difference("", f"had {keyword} {before!r}, and has {after!r}", breaking=not is_wider)


def _members(schema: Schema, root: Schema) -> dict[str, Schema]:
    """The members of a choice by their names: a class, a type, a value."""
    members, known, left = dict[str, Schema](), list[Schema](), [schema]
    while left:
        each = dereference(left.pop(0), root)
        if any(each is other for other in known):
            continue
        known.append(each)
        choice = next((each[keyword] for keyword in ("anyOf", "oneOf", "allOf") if keyword in each), None)
        if choice is not None and ("allOf" not in each or len(choice) == 1):
            left = [*choice, *left]
        elif "const" in each or isinstance(each.get("enum"), list):
            values = [each["const"]] if "const" in each else each["enum"]
            members |= {repr(value): {"const": value} for value in values}
        else:
            kinds = each.get("type", _ANY)
            several = {_name(kind, each): {**each, "type": kind} for kind in kinds} if isinstance(kinds, list) else {}
            members |= several or {_name(kinds, each): each}
    return members


def _type_of_value(member: Schema) -> str | None:
    return _TYPES.get(type(member["const"])) if "const" in member else None


def _name(kind: str, schema: Schema) -> str:
    if kind == "object" and isinstance(schema.get("title"), str) and "properties" in schema:
        return str(schema["title"])
    return f"{kind} ({schema['format']})" if "format" in schema else kind
