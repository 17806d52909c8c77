"""Classes and instances that would not come back as they were: refused with the reason and the cure."""

import typing
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column
from typing_extensions import TypeAliasType

from outboxkit import ConfigurationError, event, inbox, inbox_handler
from outboxkit.codec import payloads, pydantic_models
from tests.unit.zoo import Empty, Slotted


class Secret(BaseModel):
    password: pydantic.SecretStr | None = None


class Secrets(BaseModel):
    by_name: dict[str, Secret] = {}


class Unresolved(BaseModel):
    a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@attrs.define
class Private:
    shown: int
    _hidden: int = 3


@dataclass
class HoldsPrivate:
    inner: dict[str, Private | None]


@attrs.define
class Dependent:
    many: list[int]
    count: int = attrs.field(default=attrs.Factory(lambda self: len(self.many), takes_self=True))


@dataclass
class TwoKinds:
    by: Empty | Slotted


@dataclass
class TwoTexts:
    at: datetime | date


@dataclass
class Given:
    a: int
    b: InitVar[int] = 3

    def __post_init__(self, b: int) -> None:
        pass


@dataclass
class HoldsGiven:
    inner: tuple[Given, ...] = ()


@dataclass
class Anywhere:
    a: object = None


@dataclass
class Endless:
    a: Iterable[int] = ()


@dataclass
class Located:
    at: Path | None = None


@dataclass
class Hidden:
    password: pydantic.SecretStr | None = None


@dataclass
class Missing:
    a: "Nowhere" = None  # type: ignore[name-defined]  # noqa: F821


class InTuple(typing.NamedTuple):
    inner: "list[Secret]"


@dataclass
class InDataclass:
    typed: InTuple


class Deep(BaseModel):
    records: list[InDataclass] = []


HiddenText = TypeAliasType("HiddenText", pydantic.SecretStr)


class SecretByAlias(BaseModel):
    password: HiddenText | None = None


@dataclass
class Titled:
    inner: Annotated[list[Private], msgspec.Meta(title="people")]


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Secret(password="x"), r"Secret\.password is a secret.*writes as stars.*a serializer"),
    (SecretByAlias, r"SecretByAlias\.password is a secret"),
    (lambda: Titled([]), r"Private\._hidden is a private field"),
    (Secrets, r"Secret\.password is a secret"),
    (Deep, r"Secret\.password is a secret"),
    (lambda: Unresolved.model_construct(a=1), r"the annotations of Unresolved cannot be resolved.*Nowhere"),
    (lambda: Private(1, hidden=7), r"Private\._hidden is a private field of an attrs class.*call it hidden"),
    (lambda: HoldsPrivate({}), r"Private\._hidden is a private field"),
    (lambda: Dependent([1]), r"Dependent can be encoded, but never decoded: .*takes_self"),
    (lambda: TwoKinds(Empty()), r"TwoKinds can be encoded.*more than one dataclass.*msgspec.Struct with tag=True"),
    (
        lambda: TwoTexts(date(2026, 1, 1)),
        r"TwoTexts can be encoded, but never decoded: .*str-like.*Use only one of these types",
    ),
    (lambda: Given(1), r"Given can be encoded, but never decoded: .*InitVar"),
    (HoldsGiven, r"HoldsGiven can be encoded, but never decoded: .*InitVar"),
    (lambda: Anywhere(1), r"Anywhere has a field of type object, which has no JSON form. Use a type that has one"),
    (lambda: Endless([1]), r"Endless has a field of type Iterable"),
    (Located, r"Located has a field of type Path"),
    (Hidden, r"Hidden has a field of type SecretStr"),
    (Missing, r"Missing can be encoded.*cannot be resolved.*Nowhere.*must be importable"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_a_class_that_can_never_be_read_is_refused_by_add_and_when_a_consumer_starts(
    make: Callable[[], Any], reason: str
):
    instance = make()
    cls = type(instance)
    with pytest.raises(ConfigurationError, match=f"(?s){reason}"):
        payloads.encode(instance)

    def handle(session, event):
        pass

    handle.__annotations__["event"] = event(cls.__name__)(cls)
    with pytest.raises(ConfigurationError, match=f"(?s)^handler 'Of{cls.__name__}': .*{reason}"):
        inbox.handler_of(inbox_handler(f"Of{cls.__name__}")(handle))


class Rows(DeclarativeBase):
    pass


class MappedOrder(MappedAsDataclass, Rows):
    __tablename__ = "mapped_orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_class_that_stands_for_a_table_is_no_event():
    class Table(BaseModel):
        __table__: ClassVar[str] = "orders"

    for cls in (MappedOrder, Table):
        with pytest.raises(ConfigurationError, match=r"instances are rows of a table.* a class of its own"):
            event("Order")(cls)


class Astray(typing.NamedTuple):
    what: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


def test_an_annotation_that_leads_nowhere_is_no_secret():
    assert pydantic_models._hints(Astray) == []
