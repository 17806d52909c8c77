"""Comparison of two schemas of one event and version: what consumers of the old one meet in the new one. Pure.

A change breaks if a message of the one may not be read by the other. Such a change is a removed or retyped field, a new
required one, or a value that is no longer accepted. A value that is accepted in addition is told, and does not break.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from outboxkit.errors import ConfigurationError
from outboxkit.operators.schemas.json_schema import ANYTHING, dereference
from outboxkit.operators.schemas.keywords import Schema

_LOWEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_HIGHEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "multipleOf", "uniqueItems")
_MOST_PAIRS = 50_000
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

    Raises:
        ConfigurationError: their unions are too large to be compared.
    """
    return list(_Comparison(old, new).report(old, new))


class _Inner(NamedTuple):
    """Two schemas inside of two that are compared, and their place there."""

    path: str
    old: Schema
    new: Schema


_Pair = tuple[int, int]


class _Comparison:
    """One comparison: first of which schemas fit one another, then what is told of those that belong together.

    Classes may contain one another. Two schemas fit unless something shows that they do not, so the ones that do not
    are collected until there are no more. A pair is known by the identity of its schemas, which live as long as this.
    """

    def __init__(self, old: Schema, new: Schema) -> None:
        self._roots = old, new
        self._unions: dict[int, list[Schema]] = {}
        self._breaking = self._find_breaking(old, new)

    def report(self, old: Schema, new: Schema) -> Iterator[Difference]:
        """The differences, those of outer fields first, and those of a class under its shortest path."""
        done = set[_Pair]()
        waiting = deque([_Inner("", old, new)])
        while waiting:
            path, old, new = waiting.popleft()
            if (pair := self._pair(old, new)) in done:
                continue
            done.add(pair)
            before, after = self._alternatives(old, new)
            is_one = len(before) == len(after) == 1
            for each in _compare_one(before[0], after[0]) if is_one else self._compare_unions(before, after):
                inner = each._replace(path=f"{path}{each.path}" if path else each.path.removeprefix("."))
                if isinstance(inner, _Inner):
                    waiting.append(inner)
                else:
                    yield inner

    def _compare_unions(self, before: list[Schema], after: list[Schema]) -> Iterator[Difference | _Inner]:
        """Each old alternative needs a new one that accepts it. New ones without an old one are told."""
        used: set[int] = set()
        for old in before:
            fitting = [index for index, new in enumerate(after) if self._pair(old, new) not in self._breaking]
            alike = [index for index, new in enumerate(after) if _name(new) == _name(old)]
            if fitting:
                ranks = {
                    index: (
                        old != after[index],
                        index not in alike,
                        index in used,
                        len([*_compare_one(old, after[index])]),
                    )
                    for index in fitting
                }
                index = min(fitting, key=ranks.__getitem__)
            elif len(alike) == 1:
                index = alike[0]
            else:
                yield Difference("", f"no longer accepts {_name(old)}")
                continue
            used.add(index)
            yield _Inner("", old, after[index])
        for index, new in enumerate(after):
            if index not in used:
                yield Difference("", f"also accepts {_name(new)}", breaking=False)

    def _find_breaking(self, old: Schema, new: Schema) -> set[_Pair]:
        """The pairs whose old messages the new schema may not accept."""
        needs: dict[_Pair, list[list[_Pair]]] = {}
        waiting = [(old, new)]
        while waiting:
            old, new = waiting.pop()
            if (pair := self._pair(old, new)) in needs:
                continue
            if len(needs) >= _MOST_PAIRS:
                raise ConfigurationError(
                    "unions have too many members to be compared with one another: split it into several events"
                )
            groups = self._needs(old, new)
            needs[pair] = [[self._pair(*each) for each in group] for group in groups]
            waiting += [each for group in groups for each in group]
        breaking, size = set[_Pair](), -1
        while size < (size := len(breaking)):
            for pair in reversed(needs):  # the innermost first
                if pair not in breaking and any(all(each in breaking for each in group) for group in needs[pair]):
                    breaking.add(pair)
        return breaking

    def _needs(self, old: Schema, new: Schema) -> list[list[tuple[Schema, Schema]]]:
        """Groups of pairs, of each of which one must fit for these two to fit; an empty group never does."""
        before, after = self._alternatives(old, new)
        if len(before) != 1 or len(after) != 1:
            return [[(one, other) for other in after] for one in before]
        steps = _compare_one(before[0], after[0])
        return [
            [(each.old, each.new)] if isinstance(each, _Inner) else []
            for each in steps
            if isinstance(each, _Inner) or each.breaking
        ]

    def _alternatives(self, old: Schema, new: Schema) -> tuple[list[Schema], list[Schema]]:
        """The members of both unions, each the same object whenever it is asked for."""
        both = []
        for each, root in zip((old, new), self._roots, strict=True):
            schema = dereference(each, root)
            if id(schema) not in self._unions:
                self._unions[id(schema)] = list(_alternatives(schema, root, set()))
            both.append(self._unions[id(schema)])
        return both[0], both[1]

    def _pair(self, old: Schema, new: Schema) -> _Pair:
        return id(dereference(old, self._roots[0])), id(dereference(new, self._roots[1]))


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


def _alternatives(schema: Schema, root: Schema, known: set[int]) -> Iterator[Schema]:
    """The members of a union, each once; the schema itself if it is none."""
    schema = dereference(schema, root)
    if id(schema) in known:
        return
    known.add(id(schema))
    for keyword in ("anyOf", "oneOf", "allOf"):
        members = schema.get(keyword)
        if isinstance(members, list) and (keyword != "allOf" or len(members) == 1):
            for member in members:
                yield from _alternatives(member, root, known)
            return
    kinds = schema.get("type")
    yield from [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else [schema]


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
