"""What an effect is known by, and which sessions are of use to it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, tables
from outboxkit.effects.record import CERTAIN, EffectRun, dialect_of, new_run
from outboxkit.message import Handling, Origin, current_handling, handling
from tests.unit.shop import message

MINUTE = timedelta(minutes=1)


def ask(key: str | None = None, **options: Any) -> EffectRun:
    return new_run(**({"key": key, "on_unknown": "skip", "lease": MINUTE, "certain": ()} | options))


def test_a_key_of_its_own_is_no_ones_alone():
    found = ask("receipt-7")
    assert (found.key, found.alone, found.within, found.certain) == ("receipt-7", False, None, CERTAIN)
    assert found.token != ask("receipt-7").token


def test_inside_a_handler_its_name_and_the_message_are_the_key():
    with handling(message(id="m:1"), handler="Send"):
        found = ask()
        assert (found.key, found.alone) == ("4:Send:m:1", True)
        assert found.within is current_handling()
        assert not ask("own").alone


def test_no_two_pairs_have_one_key():
    keys = set()
    for handler, id_ in (("A:b", "c"), ("A", "b:c"), ("A:b:", "c")):
        with handling(message(id=id_), handler=handler):
            keys.add(ask().key)
    assert len(keys) == 3


def test_a_second_effect_of_a_handler_needs_a_key():
    with handling(message(), handler="Send"), ThreadPoolExecutor() as others:
        others.submit(copy_context().run, ask).result()
        with pytest.raises(ConfigurationError, match=r"handler 'Send' has a second effect.*give each a key of its own"):
            ask()
        assert ask("own").key == "own"
    with handling(message(), handler="Send"):
        assert ask().key == "4:Send:m-1"


@pytest.fixture(params=[None, message()], ids=["nothing is handled", "nobody said by whom"])
def nobody(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param is None:
        yield
        return
    with handling(request.param):
        yield


def test_outside_a_handler_a_key_is_required(nobody: None):
    with pytest.raises(ConfigurationError, match="needs a key if no handler is running"):
        ask()


@pytest.mark.parametrize(
    ("wrong", "accepted"),
    [
        *(({"key": key}, "1 to 600 printable characters") for key in ("", "x" * 601, "a\0b", "\udc80", b"bytes", 7)),
        *(({"on_unknown": policy}, "'skip' or 'repeat' is accepted") for policy in (None, "", "once", True)),
        *(({"lease": lease}, "a timedelta above 0 is accepted") for lease in (timedelta(0), -MINUTE, 60)),
    ],
)
def test_what_cannot_be_used_is_refused(wrong: dict[str, Any], accepted: str):
    with pytest.raises(ConfigurationError, match=accepted):
        ask(**{"key": "k"} | wrong)


def test_sessions_of_a_connection_are_refused(engine: Engine):
    refused = pytest.raises(ConfigurationError, match="bind the sessionmaker to an Engine")
    with engine.connect() as connection, Session(connection) as session, refused:
        dialect_of(session, None)


@pytest.mark.parametrize(
    ("held", "own", "refused"),
    [
        ("sqlite:///shop.db", "sqlite:///shop.db", True),
        ("sqlite:///shop.db", "sqlite:///../here/./shop.db", True),
        ("sqlite:///shop.db", "sqlite:///file:shop.db?uri=true", True),
        ("sqlite:///file:shop.db?mode=rwc&uri=true", "sqlite:///shop.db", True),
        (URL.create("sqlite", database="file:shop.db?mode=rwc"), "sqlite:///shop.db", True),
        ("sqlite://", "sqlite://", True),
        ("sqlite:///shop.db", "sqlite:///effects.db", False),
        ("sqlite:///shop.db", "sqlite://", False),
        ("sqlite:///shop.db", "postgresql+psycopg://localhost/shop.db", False),
        (None, "sqlite:///shop.db", False),
    ],
)
def test_a_handlers_own_file_is_refused(
    held: str | URL | None, own: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with Session(binds={tables.effect: create_engine(own)}) as session:
        origin = Origin(Session(binds={tables.inbox: create_engine(held)}), "these") if held is not None else None
        within = Handling(message(), "Send", origin)
        if not refused:
            assert dialect_of(session, within) == own.partition(":")[0].partition("+")[0]
            assert dialect_of(session, None)
            return
        with pytest.raises(ConfigurationError, match=r"SQLite has one writer at a time.*a file of its own"):
            dialect_of(session, within)
