"""What `outbox.add` may be given, and what the options mean for the row."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.orm import Session

from outboxkit import EncodeError, event, outbox, tables
from outboxkit.message import FIRST_MOMENT, LAST_MOMENT
from tests.unit.shop import NOW, OrderConfirmed, message, rows

ORDER = OrderConfirmed(7, Decimal("9.50"))
LATER = datetime.now(UTC) + timedelta(days=1)


def stored(session: Session, database_url: str) -> list[dict[str, Any]]:
    session.commit()
    return rows(database_url, tables.outbox)


@pytest.mark.parametrize(("add", "given"), [(outbox.add, ORDER), (outbox.add_all, [ORDER])])
def test_an_option_that_does_not_exist_is_refused_as_python_does(
    session: Session, add: Callable[..., object], given: object
):
    with pytest.raises(TypeError, match=rf"^{add.__name__}\(\) got an unexpected keyword argument 'keey'$"):
        add(session, given, keey="order-7")
    assert not session.new


@pytest.mark.parametrize("one", [ORDER, message()])
def test_one_event_is_not_several(session: Session, one: object):
    with pytest.raises(
        TypeError, match=r"^outbox\.add_all takes several events, as in a list; found one, .*: outbox\.add"
    ):
        outbox.add_all(session, one)  # type: ignore[arg-type]
    assert not session.new


@pytest.mark.parametrize("name", ["deliver_at", "expires_at"])
@pytest.mark.parametrize("wrong", [NOW.replace(tzinfo=None), "tomorrow", 5, timedelta(days=1), NOW.date()])
def test_a_moment_without_zone_is_refused(session: Session, name: str, wrong: Any):
    with pytest.raises(EncodeError, match=rf"{name} is .* must be a datetime with a time zone"):
        outbox.add(session, ORDER, **{name: wrong})
    assert not session.new


EAST, WEST = timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))
NEVER = [
    *(datetime.max.replace(tzinfo=zone) for zone in (UTC, EAST, WEST)),
    *(datetime.min.replace(tzinfo=zone) for zone in (UTC, EAST, WEST)),
    LAST_MOMENT + timedelta(microseconds=1),
    FIRST_MOMENT - timedelta(microseconds=1),
]


@pytest.mark.parametrize("moment", NEVER, ids=str)
def test_a_moment_at_the_end_of_the_calendar_is_refused_with_the_cure(session: Session, moment: datetime):
    for name in ("deliver_at", "expires_at"):
        with pytest.raises(
            EncodeError, match=rf"^{name} is .* to 9999-12-30 UTC .* stands for never, leave {name} out$"
        ):
            outbox.add(session, ORDER, **{name: moment})
    with pytest.raises(EncodeError, match=r"created_at is .* leave created_at out$"):
        message(created_at=moment)
    assert not session.new


def test_the_outermost_moments_are_stored_and_read_back(session: Session, database_url: str):
    outbox.add(session, ORDER, deliver_at=FIRST_MOMENT.astimezone(EAST), expires_at=LAST_MOMENT.astimezone(WEST))
    outbox.add(session, message(created_at=FIRST_MOMENT), expires_at=FIRST_MOMENT.astimezone(WEST))
    outbox.add(session, message(created_at=LAST_MOMENT), deliver_at=LAST_MOMENT)
    first, second, third = stored(session, database_url)
    assert (first["due_at"], first["expires_at"]) == (FIRST_MOMENT, LAST_MOMENT)
    assert (second["created_at"], second["expires_at"]) == (FIRST_MOMENT, FIRST_MOMENT)
    assert (third["created_at"], third["due_at"]) == (LAST_MOMENT, LAST_MOMENT)


@pytest.mark.parametrize("later", [timedelta(0), timedelta(seconds=1), timedelta(days=9)])
def test_a_message_that_expires_before_it_may_leave_is_refused(session: Session, later: timedelta):
    for add, given in ((outbox.add, ORDER), (outbox.add_all, [ORDER])):
        with pytest.raises(EncodeError, match="the message would expire before it may leave"):
            add(session, given, deliver_at=LATER.astimezone(EAST), expires_at=LATER - later)
    assert not session.new


@pytest.mark.parametrize("moment", [LATER, NOW, datetime(1960, 1, 1, tzinfo=UTC)])
def test_a_message_may_expire_also_at_once(session: Session, database_url: str, moment: datetime):
    outbox.add(session, ORDER, expires_at=moment)
    assert [row["expires_at"] for row in stored(session, database_url)] == [moment]


def test_a_message_does_not_expire_by_itself(session: Session, database_url: str):
    outbox.add(session, ORDER)
    (row,) = stored(session, database_url)
    assert (row["expires_at"], row["dedup"], row["discard_unroutable"], row["held"]) == (None, False, False, False)


@pytest.mark.parametrize("add", [outbox.add, outbox.add_all])
def test_dedup_needs_an_id_to_compare(session: Session, add: Callable[..., object]):
    given: object = [ORDER] if add is outbox.add_all else ORDER
    with pytest.raises(EncodeError, match=r"dedup compares message ids.*give message_id=ids\.derive"):
        add(session, given, dedup=True)
    assert not session.new


def test_a_ready_made_message_has_an_id_to_compare(session: Session, database_url: str):
    outbox.add_all(session, [message(id="a"), message(id="b"), message(id="a")], dedup=True)
    assert [row["message_id"] for row in stored(session, database_url)] == ["a", "b"]


@event("ChargeCard", destination="payments", reply="CardCharged")
@dataclass(frozen=True)
class ChargeCard:
    order_id: int


def test_the_event_says_where_it_goes_and_an_option_wins(session: Session, database_url: str):
    outbox.add(session, ORDER)
    outbox.add(session, ChargeCard(7))
    outbox.add(session, ChargeCard(7), destination="another")
    outbox.add(session, message(), destination="another")
    assert [(row["destination"], row["reply"]) for row in stored(session, database_url)] == [
        ("default", None),
        ("payments", "CardCharged"),
        ("another", "CardCharged"),
        ("another", None),
    ]


@pytest.mark.parametrize("wrong", [5, [("tenant", "a")], "tenant", {"tenant"}])
def test_headers_are_a_mapping(session: Session, wrong: Any):
    with pytest.raises(EncodeError, match=r"headers is .* it must be a mapping, such as a dict"):
        outbox.add(session, ORDER, headers=wrong)
    assert not session.new


@pytest.mark.parametrize("wrong", ["", "x" * 256, "é" * 128, 7, "a\0b", "\ud800"])
def test_a_destination_that_is_no_name_is_refused(session: Session, wrong: Any):
    with pytest.raises(EncodeError, match="a name of 1 to 255 bytes is accepted"):
        outbox.add(session, ORDER, destination=wrong)
    assert not session.new
