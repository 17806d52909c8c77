"""Handlers of events with several versions and names: what they are told at their start, and what they get."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit import (
    ConfigurationError,
    DecodeError,
    NewerVersion,
    Outcome,
    event,
    inbox,
    inbox_handler,
    tables,
    upcast,
)
from outboxkit.inbox import Entry, handler_of, handlers_in
from tests.unit.shop import message, rows

SEEN: list[object] = []


@event("Packed", version=2, aliases=("Wrapped",))
@dataclass(frozen=True)
class Packed:
    parcel: int


@upcast("Wrapped", 1)
def rename(document: dict[str, Any]) -> dict[str, Any]:
    return {"parcel": document["number"]}


@event("Broken", version=2)
@dataclass
class WithoutUpcast:
    parcel: int


@inbox_handler("Pack", batch=True)
def pack(session: Session, event: Packed) -> None:
    SEEN.append(event)


@inbox_handler("Broken")
def broken(session: Session, event: WithoutUpcast) -> None: ...


@pytest.fixture(autouse=True)
def seen() -> list[object]:
    SEEN.clear()
    return SEEN


def test_a_missing_upcast_is_told_at_the_start():
    module = ModuleType("handlers")
    vars(module).update(broken=broken)
    text = "^handler 'Broken': the upcast of 'Broken' from version 1 to 2 is missing"
    with pytest.raises(ConfigurationError, match=text):
        handlers_in([module])


def test_a_message_is_the_same_under_every_name_and_version(engine: Engine, database_url: str, seen: list[object]):
    old = message(type="Wrapped", payload=b'{"number":7}')
    new = message(type="Packed", payload=b'{"parcel":7}', version=2)
    outcomes = []
    for each in (old, new, old):
        with Session(engine) as session, session.begin():
            outcomes.append(inbox.run_once(session, each, pack))
    assert outcomes == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.DUPLICATE]
    assert seen == [Packed(7)]
    assert [row["type"] for row in rows(database_url, tables.inbox)] == ["Wrapped"]


def test_versions_share_a_batch(engine: Engine, seen: list[object]):
    handler = handler_of(pack)
    old = message(id="1", type="Wrapped", payload=b'{"number":7}')
    new = message(id="2", type="Packed", payload=b'{"parcel":8}', version=2)
    with Session(engine) as session, session.begin():
        entries = [Entry.of(each, handler) for each in (old, new)]
        assert inbox.run_batch(session, entries) == [Outcome.PROCESSED] * 2
    assert seen == [Packed(7), Packed(8)]


@pytest.mark.parametrize(
    ("more", "error"),
    [({"version": 3, "payload": b'{"parcel":7}'}, NewerVersion), ({"version": 1, "payload": b"{}"}, DecodeError)],
)
def test_what_cannot_be_read_is_not_in_the_inbox(
    engine: Engine, database_url: str, more: dict[str, Any], error: type[Exception]
):
    with Session(engine) as session, session.begin(), pytest.raises(error):
        inbox.run_once(session, message(type="Packed", **more), pack)
    with pytest.raises(error):
        Entry.of(message(type="Packed", **more), handler_of(pack))
    assert rows(database_url, tables.inbox) == []
