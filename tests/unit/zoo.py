"""Classes of events that people write: each is accepted, and its instances come back exactly."""

from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
from hypothesis import strategies as st
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tests.unit.shop import Colour

T = TypeVar("T")


class Aliased(BaseModel):
    customer_name: str = Field(alias="customerName")
    note: str = Field("", validation_alias="theNote")


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    order_id: int
    line_prices: list[Decimal] = []


class CamelByName(Camel):
    model_config = ConfigDict(populate_by_name=True)


class CamelStrict(Camel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Choices(BaseModel):
    name: str = Field(validation_alias=AliasChoices("theName", AliasPath("names", 0)), serialization_alias="theName")
    other: str = Field("", validation_alias=AliasPath("others", 0))


class WrittenOnly(BaseModel):
    card_number: str = Field(serialization_alias="cardNumber")


class Crossed(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Card(BaseModel):
    kind: Literal["card"] = Field("card", alias="theKind")
    number: str = ""


class Iban(BaseModel):
    kind: Literal["iban"] = Field("iban", alias="theKind")


class Paid(BaseModel):
    by: Annotated[Card | Iban, Field(discriminator="kind")]
    earlier: dict[str, list[Aliased]] = {}


class Totals(pydantic.RootModel[dict[str, Decimal]]):
    pass


class Computed(BaseModel):
    price: Decimal

    @pydantic.computed_field
    @property
    def gross(self) -> Decimal:
        return self.price * 2


class Told(BaseModel):
    secret: pydantic.SecretStr

    @pydantic.field_serializer("secret")
    def _tell(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


class Page(BaseModel, Generic[T]):
    items: list[T]


@pydantic.dataclasses.dataclass
class Validated:
    number: int = Field(alias="theNumber")
    many: list[int] = Field(default_factory=list)


class Excluded(BaseModel):
    name: str
    note: str | None = Field(None, exclude=True)


@attrs.define
class Attrs:
    total: Decimal = attrs.field(converter=Decimal, alias="sum")
    later: int = attrs.field(init=False, default=3)
    many: list[int] = attrs.field(factory=list, validator=attrs.validators.max_len(3))


@dataclass(kw_only=True, slots=True)
class Slotted:
    name: str
    _revision: int = 0
    doubled: int = field(init=False, default=0)
    many: list[int] = field(default_factory=list)
    KIND: ClassVar[str] = "x"

    def __post_init__(self) -> None:
        self.doubled = len(self.name) * 2


class Renamed(msgspec.Struct, rename="camel", tag=True, omit_defaults=True, forbid_unknown_fields=True):
    order_id: int
    some_note: str | None = None
    missing: int | msgspec.UnsetType = msgspec.UNSET


class Left(msgspec.Struct, tag=True):
    a: int


class Right(msgspec.Struct, tag=True):
    a: int


class Place(TypedDict):
    street: str
    since: NotRequired[date]


class Point(NamedTuple):
    x: Decimal
    y: Decimal = Decimal(0)


@dataclass
class Nested:
    camel: Camel
    strict: CamelStrict
    place: Place
    point: Point
    side: Left | Right
    attrs: Attrs
    slotted: list[Slotted]
    more: "Nested | None" = None
    by_colour: dict[Colour, Point] = field(default_factory=dict)


@dataclass
class Empty:
    pass


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Identity:
    """A class whose instances are equal to nothing but themselves."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    parts: list[Empty]


@dataclass
class Animal:
    name: str


@dataclass
class Animals:
    animals: list[Animal]


@dataclass
class Open:
    anything: Any


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
CAMELS = st.builds(lambda number, prices: {"orderId": number, "linePrices": prices}, st.integers(), st.lists(DECIMALS))
SLOTTED = st.builds(Slotted, name=TEXT, _revision=st.integers(), many=st.lists(st.integers(), max_size=2))
PLACES: Any = st.fixed_dictionaries({"street": TEXT}, optional={"since": st.dates()})
ATTRS = st.builds(Attrs, sum=DECIMALS, many=st.lists(st.integers(), max_size=3))
POINTS = st.builds(Point, DECIMALS, DECIMALS)
NESTED = st.builds(
    Nested,
    CAMELS.map(lambda given: Camel(**given)),
    CAMELS.map(lambda given: CamelStrict(**given)),
    PLACES,
    POINTS,
    st.builds(Left, st.integers(-9, 9)) | st.builds(Right, st.integers(-9, 9)),
    ATTRS,
    st.lists(SLOTTED, max_size=2),
    by_colour=st.dictionaries(st.sampled_from(Colour), POINTS, max_size=2),
)
ZOO = st.one_of(
    st.builds(Aliased, customerName=TEXT, theNote=TEXT),
    CAMELS.map(lambda given: Camel(**given)),
    CAMELS.map(lambda given: CamelByName(**given)),
    CAMELS.map(lambda given: CamelStrict(**given)),
    st.builds(lambda name, other: Choices(theName=name, others=[other]), TEXT, TEXT),
    st.builds(WrittenOnly, card_number=TEXT),
    st.builds(Crossed, a=st.integers(), b=st.integers()),
    st.builds(lambda by: Paid(by=by, earlier={"x": [Aliased(customerName="ann")]}), st.sampled_from([Card(), Iban()])),
    st.builds(Totals, st.dictionaries(TEXT, DECIMALS, max_size=2)),
    st.builds(Computed, price=DECIMALS),
    st.builds(Told, secret=TEXT),
    st.builds(Page[UUID], items=st.lists(st.uuids(), max_size=2)),
    st.builds(lambda number: Validated(theNumber=number), st.integers()),
    st.builds(Excluded, name=TEXT),
    ATTRS,
    SLOTTED,
    st.builds(Renamed, st.integers(), some_note=st.none() | TEXT),
    NESTED,
    st.builds(lambda outer, inner: replace(outer, more=inner), NESTED, NESTED),
    st.builds(Empty),
    st.builds(Box, TEXT | st.booleans()),
)
