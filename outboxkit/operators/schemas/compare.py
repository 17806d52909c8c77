"""Comparison of two schemas of one event and version: what consumers of the old one meet in the new one. Pure.

A change breaks if a message of the one may not be read by the other. Such a change is a removed or retyped field, a new
required one, or a value that is no longer accepted. A value that is accepted in addition is told, and does not break.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from outboxkit.operators.schemas.json_schema import ANYTHING, Schema, dereference

_LOWEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_HIGHEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "multipleOf", "uniqueItems")
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class Difference(NamedTuple):
    """One difference between two schemas.

    Attributes:
        path: the field, such as `lines[].price`; empty for the event itself.
        text: what has changed.
        breaking: whether a message of the one cannot be read by the other.
    """

    path: str
    text: str
    breaking: bool = True


def differences(old: Schema, new: Schema) -> list[Difference]:
    """The differences of two schemas, as `json_schema` returns them; empty if they mean the same.

    A class that is a part of several fields is compared once, under its shortest path.
    """
    return list(_differences(old, new))


class _Inner(NamedTuple):
    """Two schemas inside of two that are compared, and their place there."""

    path: str
    old: Schema
    new: Schema


def _differences(old_root: Schema, new_root: Schema) -> Iterator[Difference]:
    """The differences, those of outer fields first. Classes may contain one another: each pair is compared once."""
    done, waiting = set[tuple[int, int]](), deque([_Inner("", old_root, new_root)])
    while waiting:
        path, old, new = waiting.popleft()
        old, new = dereference(old, old_root), dereference(new, new_root)
        if (pair := (id(old), id(new))) in done:
            continue
        done.add(pair)
        before, after = list(_members(old, old_root)), list(_members(new, new_root))
        is_one = len(before) == len(after) == 1
        for each in _compare_one(before[0], after[0]) if is_one else _compare_unions(before, after):
            inner = each._replace(path=f"{path}{each.path}" if path else each.path.removeprefix("."))
            if isinstance(inner, _Inner):
                waiting.append(inner)
            else:
                yield inner


def _compare_unions(before: list[Schema], after: list[Schema]) -> Iterator[Difference | _Inner]:
    """Each old member needs a new one of its name. New ones of other names are told."""
    left = list(after)
    for old in before:
        member = next((each for each in left if _name(each) == _name(old)), None)
        if member is None:
            yield Difference("", f"no longer accepts {_name(old)}")
        else:
            left.remove(member)
            yield _Inner("", old, member)
    yield from (Difference("", f"also accepts {_name(each)}", breaking=False) for each in left)


def _compare_one(old: Schema, new: Schema) -> Iterator[Difference | _Inner]:
    """The differences of two schemas that are not unions, and the pairs inside them. Paths begin here."""
    before, after = _values(old), _values(new)
    if before is not None and after is not None:
        for value in before:
            if value not in after:
                yield Difference("", f"no longer accepts {value!r}")
        for value in after:
            if value not in before:
                yield Difference("", f"also accepts {value!r}", breaking=False)
        return
    if _type(old) != _type(new) or old.get("format") != new.get("format"):
        if not (after is None and _type(new) == "any"):
            yield Difference("", f"was {_name(old)}, and is {_name(new)}")
        else:
            yield Difference("", f"was {_name(old)}, and accepts any value", breaking=False)
        return
    if after is not None:
        yield Difference("", f"was {_name(old)}, and accepts only {_name(new)}")
    elif before is not None:
        yield Difference("", f"accepted only {_name(old)}, and is {_name(new)}", breaking=False)
    yield from _constraints(old, new)
    yield from _compare_fields(old, new)
    yield from _compare_items(old, new)


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
    items, items_now = old.get("items", ANYTHING), new.get("items", ANYTHING)
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


def _members(schema: Schema, root: Schema) -> Iterator[Schema]:
    """The members of a union, each once; the schema itself if it is none."""
    known, left = list[Schema](), [schema]
    while left:
        each = dereference(left.pop(0), root)
        if any(each is other for other in known):
            continue
        known.append(each)
        choice = next((each[keyword] for keyword in ("anyOf", "oneOf", "allOf") if keyword in each), None)
        if choice is not None and ("allOf" not in each or len(choice) == 1):
            left = [*choice, *left]
        elif isinstance(each.get("type"), list):
            yield from ({**each, "type": kind} for kind in each["type"])
        else:
            yield each


def _values(schema: Schema) -> list[Any] | None:
    """The values of an enum, a literal or a tag; None if the values are not listed."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) else None


def _type(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    kinds = {_TYPES.get(type(value), "any") for value in _values(schema) or ()}
    return kinds.pop() if len(kinds) == 1 else "any"


def _name(schema: Schema) -> str:
    """The schema in a word or two."""
    values = _values(schema)
    if values is not None:
        return " or ".join(map(repr, values))
    kind, form = _type(schema), schema.get("format")
    if kind == "object" and isinstance(schema.get("title"), str) and "properties" in schema:
        return str(schema["title"])
    if kind == "any":
        return "any value"
    return f"{kind} ({form})" if form else kind
