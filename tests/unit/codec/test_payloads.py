"""Events to bytes and back."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import DecodeError, EncodeError
from outboxkit.codec import payloads
from tests.unit.shop import Address, Colour, CustomerMoved, Line, OrderConfirmed, ParcelSent, Size, StockChanged

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
ZONES = st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30)))
MOMENTS = st.datetimes(timezones=ZONES).map(lambda moment: moment.replace(fold=0))  # JSON's date-times have no fold
TIMES = st.times(timezones=st.none() | st.just(UTC)).map(lambda moment: moment.replace(fold=0))
COLOURS = st.sampled_from(Colour)
LINES = st.builds(Line, sku=TEXT, price=DECIMALS, size=st.sampled_from(Size))
ADDRESSES = st.builds(Address, street=TEXT, since=MOMENTS)
EVENTS = st.one_of(
    st.builds(
        OrderConfirmed,
        order_id=st.integers(),
        total=DECIMALS,
        at=st.none() | MOMENTS,
        customer=st.none() | st.uuids(),
        colour=COLOURS,
        lines=st.lists(LINES, max_size=3),
    ),
    st.builds(ParcelSent, parcel_id=st.uuids(), on=st.dates(), until=st.none() | TIMES),
    st.builds(StockChanged, sku=TEXT, amount=DECIMALS, by_colour=st.dictionaries(TEXT, st.integers(), max_size=3)),
    st.builds(CustomerMoved, customer=st.uuids(), to=ADDRESSES, colour=COLOURS, credit=DECIMALS),
)
REQUIRED = [
    (OrderConfirmed, {"order_id": 7, "total": "9.50"}),
    (ParcelSent, {"parcel_id": str(UUID(int=1)), "on": "2026-03-01"}),
    (StockChanged, {"sku": "a", "amount": "1.5"}),
    (CustomerMoved, {"customer": str(UUID(int=1)), "to": {"street": "High Street", "since": "2026-03-01T12:00:00Z"}}),
]


@given(EVENTS)
def test_every_kind_of_event_comes_back_as_it_was(event: object):
    payload = payloads.encode(event)
    assert isinstance(json.loads(payload), dict)
    found = payloads.decode(type(event), payload)
    assert found == event
    assert payloads.encode(found) == payload  # 1.10 equals 1.1, and 12:00+00:00 equals 14:00+02:00; the bytes do not


@dataclass
class Everything:
    number: float
    length: timedelta
    raw: bytes
    pair: tuple[int, str]
    choice: Colour | None
    names: set[str] = field(default_factory=set)


@given(
    st.builds(
        Everything,
        number=st.floats(allow_nan=False, allow_infinity=False),
        length=st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
        raw=st.binary(max_size=40),
        pair=st.tuples(st.integers(), TEXT),
        choice=st.none() | COLOURS,
        names=st.sets(TEXT, max_size=3),
    )
)
def test_other_types_of_the_standard_library_come_back_too(event: Everything):
    assert payloads.decode(Everything, payloads.encode(event)) == event


@pytest.mark.parametrize("total", ["1.10", "0.00", "-0.1", "1E+3", "123456789012345678901234567890.12"])
def test_a_decimal_keeps_every_digit(total: str):
    payload = payloads.encode(OrderConfirmed(1, Decimal(total)))
    assert json.loads(payload)["total"] == total
    assert str(payloads.decode(OrderConfirmed, payload).total) == total


@pytest.mark.parametrize(("cls", "known"), REQUIRED)
def test_unknown_fields_are_ignored(cls: type, known: dict[str, Any]):
    newer = payloads.decode(cls, json.dumps(known | {"added_later": {"deep": [1]}}).encode())
    assert newer == payloads.decode(cls, json.dumps(known).encode())


@pytest.mark.parametrize(("cls", "known"), REQUIRED)
def test_a_missing_field_is_named(cls: type, known: dict[str, Any]):
    for name in known:
        rest = {other: value for other, value in known.items() if other != name}
        with pytest.raises(DecodeError, match=rf"the payload is not a valid {cls.__name__}: .*\b{name}\b"):
            payloads.decode(cls, json.dumps(rest).encode())


@pytest.mark.parametrize(
    ("cls", "payload", "place"),
    [
        (OrderConfirmed, {"order_id": 7, "total": "1", "lines": [{"price": "1"}]}, r"sku.*\$\.lines\[\.\.\.\]|lines"),
        (CustomerMoved, {"customer": str(UUID(int=1)), "to": {"street": "a"}}, r"to\.since"),
        (OrderConfirmed, {"order_id": "seven", "total": "1"}, r"\$\.order_id"),
        (OrderConfirmed, {"order_id": 7, "total": "1", "colour": "green"}, r"\$\.colour"),
        (CustomerMoved, {"customer": "nobody", "to": {"street": "a", "since": "2026-03-01"}}, "customer: "),
    ],
)
def test_a_wrong_field_is_named_with_its_place(cls: type, payload: dict[str, Any], place: str):
    with pytest.raises(DecodeError, match=place):
        payloads.decode(cls, json.dumps(payload).encode())


def test_an_id_that_was_null_is_told_its_usual_cause():
    with pytest.raises(DecodeError, match=r"got `null` - at `\$\.order_id`\. If it is the id of a new row"):
        payloads.decode(OrderConfirmed, b'{"order_id": null, "total": "1"}')
    with pytest.raises(DecodeError, match=r"got `null`$"):
        payloads.decode(OrderConfirmed, b"null")


@pytest.mark.parametrize("cls", [OrderConfirmed, ParcelSent, StockChanged, CustomerMoved])
@pytest.mark.parametrize("payload", [b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b'"text"', b"[" * 100_000])
def test_what_is_no_json_object_is_a_decode_error_in_one_line(cls: type, payload: bytes):
    with pytest.raises(DecodeError, match=f"the payload is not a valid {cls.__name__}") as raised:
        payloads.decode(cls, payload)
    assert len(str(raised.value).splitlines()) == 1


@given(st.binary(max_size=200))
def test_any_bytes_are_an_event_or_a_decode_error(payload: bytes):
    for cls in (OrderConfirmed, CustomerMoved):
        with suppress(DecodeError):
            assert isinstance(payloads.decode(cls, payload), cls)


def test_a_decode_error_does_not_quote_the_payload():
    payload = {"customer": str(UUID(int=1)), "to": {"street": "secret street", "since": "never"}}
    with pytest.raises(DecodeError) as raised:
        payloads.decode(CustomerMoved, json.dumps(payload).encode())
    assert "secret street" not in str(raised.value)


@dataclass
class Anything:
    value: Any


class AnyModel(pydantic.BaseModel):
    value: Any


@attrs.define
class AnyAttrs:
    value: Any


class AnyStruct(msgspec.Struct):
    value: Any


@pytest.mark.parametrize("cls", [Anything, AnyModel, AnyAttrs, AnyStruct])
@pytest.mark.parametrize("value", [object(), lambda: None], ids=["object", "function"])
def test_a_value_without_json_form_is_refused(cls: Any, value: object):
    with pytest.raises(EncodeError, match=f"{cls.__name__} cannot be encoded as JSON"):
        payloads.encode(cls(value=value))


@pytest.mark.parametrize("cls", [Anything, AnyModel])
def test_a_lone_surrogate_and_a_loop_are_refused(cls: Any):
    endless: list[object] = []
    endless.append(endless)
    for value in ("\ud800", endless):
        with pytest.raises(EncodeError, match="cannot be encoded as JSON"):
            payloads.encode(cls(value=value))


@dataclass
class Measured:
    value: float
    maybe: float | None = None
    many: list[float | None] = field(default_factory=list)


class MeasuredModel(pydantic.BaseModel):
    value: float
    maybe: float | None = None
    many: list[float | None] = []


@pytest.mark.parametrize("cls", [Measured, MeasuredModel])
@pytest.mark.parametrize("lost", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_cannot_hold_is_refused_and_not_sent_as_null(cls: Any, lost: float):
    for fields in ({"value": lost}, {"value": 1, "maybe": lost}, {"value": 1, "many": [None, lost]}):
        with pytest.raises(EncodeError, match=f"{cls.__name__} holds a float that is NaN or infinite"):
            payloads.encode(cls(**fields))


def test_a_lost_number_is_found_deep_inside():
    @dataclass
    class Outer:
        models: dict[str, list[MeasuredModel]]

    with pytest.raises(EncodeError, match="NaN or infinite"):
        payloads.encode(Outer({"a": [MeasuredModel(value=1), MeasuredModel(value=float("nan"))]}))


@dataclass
class AroundModel:
    inner: MeasuredModel


@pytest.mark.parametrize(("cls", "around"), [(MeasuredModel, b"%b"), (AroundModel, b'{"inner":%b}')])
@pytest.mark.parametrize("count", [1000, 1001])
def test_the_errors_of_a_payload_take_little_memory_however_many_pydantic_finds(cls: Any, around: bytes, count: int):
    payload = around % (b'{"value":1,"many":["x"%b]}' % (b',"x"' * (count - 1)))
    with pytest.raises(DecodeError) as caught:
        payloads.decode(cls, payload)
    kept = [caught.value, caught.value.__cause__, getattr(caught.value.__cause__, "__cause__", None)]
    longest = max(len(str(error)) for error in kept)
    if count > 1000:
        assert "it has more than 1000 errors" in str(caught.value)
        assert longest < 200
    else:
        assert "many.0" in str(caught.value) or "many.0" in str(caught.value.__cause__)


def test_pydantic_stops_at_the_first_wrong_entry_of_a_list_that_asks_for_it():
    class Hasty(pydantic.BaseModel):
        many: Annotated[list[MeasuredModel], pydantic.FailFast()]

    with pytest.raises(DecodeError) as caught:
        payloads.decode(Hasty, b'{"many":[{},{},{}]}')
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)
    assert caught.value.__cause__.error_count() == 1
    assert payloads.decode(Hasty, b'{"many":[{"value":1}]}').many[0].value == 1
