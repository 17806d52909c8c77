"""Comparison of two schemas of one event and version: what consumers of the old one meet in the new one. Pure.

A change breaks if a message of the one may not be read by the other. Such a change is a removed or retyped field, a new
required one, or a value that is no longer accepted. A value that is accepted in addition is told, and does not break.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from outboxkit.schemas.json_schema import Schema, dereference

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
    """The differences of two schemas, as `json_schema` returns them; empty if they mean the same."""
    return list(_Comparison(old, new).compare(old, new, ""))


class _Comparison:
    """One comparison; it keeps the pairs that are being compared, since a schema may contain itself."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new
        self._open: set[tuple[int, int]] = set()

    def compare(self, old: Schema, new: Schema, path: str) -> Iterator[Difference]:
        old, new = dereference(old, self._old), dereference(new, self._new)
        pair = (id(old), id(new))
        if pair in self._open:
            return
        self._open.add(pair)
        before, after = _alternatives(old, self._old), _alternatives(new, self._new)
        if len(before) == len(after) == 1:
            yield from self._compare_one(before[0], after[0], path)
        else:
            yield from self._compare_unions(before, after, path)
        self._open.discard(pair)

    def _compare_unions(self, before: list[Schema], after: list[Schema], path: str) -> Iterator[Difference]:
        """Each old alternative needs a new one that accepts it. New ones without an old one are told."""
        used: set[int] = set()
        for old in before:
            pairs = [(list(self.compare(old, new, path)), index) for index, new in enumerate(after)]
            fitting = min(pairs, key=lambda each: (_is_breaking(each[0]), len(each[0])))
            if not _is_breaking(fitting[0]):
                used.add(fitting[1])
                yield from fitting[0]
                continue
            alike = [(each, index) for each, index in pairs if _name(after[index]) == _name(old)]
            if len(alike) == 1:
                used.add(alike[0][1])
                yield from alike[0][0]
            else:
                yield Difference(path, f"no longer accepts {_name(old)}")
        for index, new in enumerate(after):
            if index not in used:
                yield Difference(path, f"also accepts {_name(new)}", breaking=False)

    def _compare_one(self, old: Schema, new: Schema, path: str) -> Iterator[Difference]:
        before, after = _values(old), _values(new)
        if before is not None and after is not None:
            for value in before:
                if value not in after:
                    yield Difference(path, f"no longer accepts {value!r}")
            for value in after:
                if value not in before:
                    yield Difference(path, f"also accepts {value!r}", breaking=False)
            return
        if _type(old) != _type(new) or old.get("format") != new.get("format"):
            if not (after is None and _type(new) == "any"):
                yield Difference(path, f"was {_name(old)}, and is {_name(new)}")
            else:
                yield Difference(path, f"was {_name(old)}, and accepts any value", breaking=False)
            return
        if after is not None:
            yield Difference(path, f"was {_name(old)}, and accepts only {_name(new)}")
        elif before is not None:
            yield Difference(path, f"accepted only {_name(old)}, and is {_name(new)}", breaking=False)
        yield from _constraints(old, new, path)
        yield from self._compare_fields(old, new, path)
        yield from self._compare_items(old, new, path)

    def _compare_fields(self, old: Schema, new: Schema, path: str) -> Iterator[Difference]:
        before, after = old.get("properties", {}), new.get("properties", {})
        was_required, required = set(old.get("required", ())), set(new.get("required", ()))
        for name in before:
            inner = f"{path}.{name}" if path else name
            if name not in after:
                yield Difference(inner, "was removed")
                continue
            if name in required - was_required:
                yield Difference(inner, "was optional, and is required")
            elif name in was_required - required:
                yield Difference(inner, "was required, and is optional", breaking=False)
            yield from self.compare(before[name], after[name], inner)
        for name in after:
            if name not in before:
                kind = "a new required field" if name in required else "a new optional field"
                yield Difference(f"{path}.{name}" if path else name, f"is {kind}", breaking=name in required)
        more, more_now = old.get("additionalProperties", True), new.get("additionalProperties", True)
        if isinstance(more, dict) and isinstance(more_now, dict):
            yield from self.compare(more, more_now, f"{path}{{}}")
        elif more_now is False and more is not False:
            yield Difference(path, "refuses fields that it does not know")

    def _compare_items(self, old: Schema, new: Schema, path: str) -> Iterator[Difference]:
        before, after = old.get("prefixItems", ()), new.get("prefixItems", ())
        if len(before) != len(after):
            yield Difference(path, f"had {len(before)} items of types of their own, and has {len(after)}")
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from self.compare(one, other, f"{path}[{index}]")
        items, items_now = old.get("items", {}), new.get("items", {})
        if (items or items_now) and isinstance(items, dict) and isinstance(items_now, dict):
            yield from self.compare(items, items_now, f"{path}[]")


def _constraints(old: Schema, new: Schema, path: str) -> Iterator[Difference]:
    for keyword in (*_LOWEST, *_HIGHEST, *_EXACT):
        before, after = old.get(keyword), new.get(keyword)
        if before == after:
            continue
        if after is None:
            yield Difference(path, f"no longer has {keyword} {before!r}", breaking=False)
        elif before is None:
            yield Difference(path, f"has {keyword} {after!r} now")
        else:
            is_wider = (keyword in _LOWEST and after < before) or (keyword in _HIGHEST and after > before)
            yield Difference(path, f"had {keyword} {before!r}, and has {after!r}", breaking=not is_wider)


def _is_breaking(changes: list[Difference]) -> bool:
    return any(difference.breaking for difference in changes)


def _alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """The members of a union; the schema itself if it is none."""
    schema = dereference(schema, root)
    for keyword in ("anyOf", "oneOf", "allOf"):
        members = schema.get(keyword)
        if isinstance(members, list) and (keyword != "allOf" or len(members) == 1):
            return [each for member in members for each in _alternatives(member, root)]
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else [schema]


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
