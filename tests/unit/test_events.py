"""`@event`: which classes can be events, and what they are called."""

import subprocess
import sys
from dataclasses import dataclass
from enum import Enum

import pytest

from outboxkit import ConfigurationError, event
from outboxkit.events import Declaration, declaration_of, is_event, name_of
from tests.unit.shop import CustomerMoved, OrderConfirmed, ParcelSent, StockChanged


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (OrderConfirmed, "OrderConfirmed"),
        (ParcelSent, "ParcelSent"),
        (StockChanged, "StockChanged"),
        (CustomerMoved, "CustomerMoved"),
    ],
)
def test_four_kinds_of_classes_can_be_events(cls: type, name: str):
    assert name_of(cls) == name
    assert is_event(cls)


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, None, 7, "a\0b", "\ud800"])
def test_the_name_is_a_short_text(name: object):
    with pytest.raises(ConfigurationError, match="@event takes a name of 1 to 255 bytes"):
        event(name)


def test_what_is_said_of_a_class_is_written_on_it():
    @event("Moved", strict_order=True, unroutable="discard")
    @dataclass
    class Moved:
        a: int

    assert declaration_of(Moved) == Declaration("Moved", strict_order=True, discard_unroutable=True)
    assert declaration_of(OrderConfirmed) == Declaration("OrderConfirmed", strict_order=False, discard_unroutable=False)
    assert name_of(Moved) == "Moved"


@pytest.mark.parametrize("wrong", ["bury", "", True, 1])
def test_only_discard_is_accepted_for_what_is_unroutable(wrong: object):
    with pytest.raises(ConfigurationError, match=f'takes unroutable="discard" or None; found {wrong!r}'):
        event("Moved", unroutable=wrong)


def test_where_it_goes_and_what_comes_back_is_written_on_the_class():
    @event("ChargeCard", destination="payments", reply="CardCharged")
    @dataclass
    class ChargeCard:
        a: int

    assert declaration_of(ChargeCard) == Declaration("ChargeCard", destination="payments", reply="CardCharged")
    assert (declaration_of(OrderConfirmed).destination, declaration_of(OrderConfirmed).reply) == ("default", None)


@pytest.mark.parametrize("wrong", ["", "x" * 256, "é" * 128, 7, "a\0b", "\ud800"])
@pytest.mark.parametrize("option", ["destination", "reply"])
def test_a_destination_and_a_reply_are_short_texts(option: str, wrong: object):
    with pytest.raises(ConfigurationError, match=f"takes a {option} of 1 to 255 bytes"):
        event("ChargeCard", **({"destination": "payments", "reply": "CardCharged"} | {option: wrong}))


def test_a_broker_gives_no_reply():
    with pytest.raises(ConfigurationError, match="add an HTTP destination"):
        event("ChargeCard", reply="CardCharged")


class Plain:
    pass


class Choice(Enum):
    A = 1


@pytest.mark.parametrize("cls", [Plain, Choice, dict, int])
def test_other_classes_are_refused_with_the_cure(cls: type):
    with pytest.raises(ConfigurationError, match="Write @event above the decorator that makes it one"):
        event("Other")(cls)


def test_a_subclass_is_not_the_event_of_its_parent():
    @dataclass(frozen=True)
    class Special(OrderConfirmed):
        note: str = ""

    assert not is_event(Special)
    with pytest.raises(ConfigurationError, match=r'Special is not an event: decorate it with @event\("Special"\)'):
        name_of(Special)
    event("SpecialOrder")(Special)
    assert (name_of(Special), name_of(OrderConfirmed)) == ("SpecialOrder", "OrderConfirmed")


def test_pydantic_is_not_needed():
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "from dataclasses import dataclass\n"
        "from outboxkit import events\nfrom outboxkit.codec import payloads\n"
        "@events.event('A')\n@dataclass\nclass A:\n    a: int\n"
        "assert payloads.decode(A, payloads.encode(A(1))) == A(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_version_and_earlier_names_are_written_on_the_class():
    @event("OrderConfirmed", version=2, aliases=["OrderApproved", "OrderTaken", "OrderApproved"])
    @dataclass
    class Confirmed:
        number: int

    declaration = declaration_of(Confirmed)
    assert (declaration.version, declaration.aliases) == (2, ("OrderApproved", "OrderTaken"))
    assert declaration.names == ("OrderConfirmed", "OrderApproved", "OrderTaken")


@pytest.mark.parametrize("version", [0, -1, "2", 1.0, True, None, 2**31])
def test_a_version_is_a_whole_number_from_1(version: object):
    with pytest.raises(ConfigurationError, match="takes a version, a whole number from 1 to 2147483647; found"):
        event("OrderConfirmed", version=version)


@pytest.mark.parametrize("aliases", ["OrderApproved", ("",), (7,), ("x" * 256,), ("OrderConfirmed",), None, {"A": 1}])
def test_aliases_are_other_names(aliases: object):
    with pytest.raises(ConfigurationError, match="takes as aliases the names that it had before"):
        event("OrderConfirmed", aliases=aliases)
