"""Classes of events: what is accepted comes back exactly, and the rest is refused with the reason and the cure."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from pydantic import BaseModel, Field

from outboxkit import EncodeError, event
from outboxkit.codec import payloads
from outboxkit.testing import assert_round_trips
from tests.unit.zoo import (
    ZOO,
    Aliased,
    Animal,
    Animals,
    Box,
    Camel,
    CamelByName,
    CamelStrict,
    Choices,
    Computed,
    Excluded,
    Iban,
    Open,
    Paid,
    Totals,
    Validated,
    WrittenOnly,
)


@given(ZOO)
def test_what_is_accepted_comes_back_exactly(instance: Any):
    assert payloads.decode(type(instance), payloads.encode(instance)) == instance


@pytest.mark.parametrize(
    ("instance", "payload"),
    [
        (Aliased(customerName="ann", theNote="x"), b'{"customerName":"ann","note":"x"}'),
        (Camel(orderId=1), b'{"orderId":1,"linePrices":[]}'),
        (CamelByName(order_id=1), b'{"orderId":1,"linePrices":[]}'),
        (Paid(by=Iban()), b'{"by":{"theKind":"iban"},"earlier":{}}'),
        (WrittenOnly(card_number="4"), b'{"card_number":"4"}'),
        (Computed(price=Decimal("1.10")), b'{"price":"1.10","gross":"2.20"}'),
        (Totals({"a": Decimal(1)}), b'{"a":"1"}'),
        (Box(Camel(orderId=1)).content, b'{"orderId":1,"linePrices":[]}'),
    ],
)
def test_aliases_are_written_if_the_class_reads_them_as_well(instance: Any, payload: bytes):
    assert payloads.encode(instance) == payload


@pytest.mark.parametrize(
    ("stored", "instance"),
    [
        (b'{"customer_name":"ann","note":"x"}', Aliased(customerName="ann", theNote="x")),
        (b'{"order_id":1,"line_prices":["2"]}', CamelStrict(orderId=1, linePrices=[Decimal(2)])),
        (b'{"by":{"kind":"iban"},"earlier":{"x":[{"customer_name":"a"}]}}', None),
        (b'{"name":"a","other":"b"}', Choices(theName="a", others=["b"])),
        (b'{"number":4,"many":[1]}', Validated(theNumber=4, many=[1])),
    ],
)
def test_what_an_earlier_version_stored_under_the_fields_own_names_can_still_be_read(stored: bytes, instance: Any):
    if instance is None:
        instance = Paid(by=Iban(), earlier={"x": [Aliased(customerName="a")]})
    assert payloads.decode(type(instance), stored) == instance


def test_an_outside_system_gets_the_aliases_and_is_not_asked_whether_they_can_be_read():
    @event("ChargeCard", destination="payments")
    class ChargeCard(BaseModel):
        card_number: str = Field(serialization_alias="cardNumber")
        attempt: int = Field(1, exclude=True)

    assert payloads.encode(ChargeCard(card_number="4", attempt=2)) == b'{"cardNumber":"4"}'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_has_not_is_refused_in_a_dataclass_of_pydantic(number: float):
    @pydantic.dataclasses.dataclass
    class Measured:
        value: float
        unit: str | None = None

    assert payloads.encode(Measured(1.5)) == b'{"value":1.5,"unit":null}'
    with pytest.raises(EncodeError, match="a float that is NaN or infinite"):
        payloads.encode(Measured(number))


def test_a_model_with_a_way_of_writing_of_its_own_is_asked_as_it_is():
    class Sparse(BaseModel):
        a: int | None = None

        def model_dump_json(self, **_: Any) -> str:
            return super().model_dump_json(exclude_none=True)

    assert payloads.encode(Sparse()) == b"{}"


@event("Later")
@dataclass
class Later:
    more: "list[Late]"


@dataclass
class Late:
    name: str


def test_a_secret_that_its_class_writes_itself_is_accepted():
    class ByField(BaseModel):
        password: pydantic.SecretStr

        @pydantic.field_serializer("password")
        def tell(self, value: pydantic.SecretStr) -> str:
            return value.get_secret_value()

    class ByModel(BaseModel):
        password: pydantic.SecretStr

        @pydantic.model_serializer
        def tell(self) -> dict[str, str]:
            return {"password": self.password.get_secret_value()}

    for cls in (ByField, ByModel):
        assert payloads.encode(cls(password="x")) == b'{"password":"x"}'


@pytest.mark.parametrize("event", [Animals([Animal("a")]), Open([1, {"a": "b"}])])
def test_an_event_that_comes_back_as_it_is(event: Any):
    assert_round_trips(event)


@dataclass
class Dog(Animal):
    tail: int = 1


@pytest.mark.parametrize("event", [Animals([Animal("a"), Dog("b")]), Open(UUID(int=1)), Excluded(name="a", note="b")])
def test_a_value_that_comes_back_as_another_one_is_found(event: Any):
    with pytest.raises(AssertionError, match="comes back as"):
        assert_round_trips(event)
