"""Judgements on what a test cannot have a server show, such as old releases and standbys."""

from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.operators.doctor import activity, durability, reach, sessions, waiting
from outboxkit.operators.doctor.installation import Thresholds

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("version", "today", "codes"),
    [
        (120_020, date(2025, 1, 1), ["server-old"]),
        (130_023, date(2025, 1, 1), []),
        (130_023, date(2026, 1, 1), ["server-unsupported"]),
        (150_002, date(2025, 1, 1), ["server-minor-old"]),
        (150_015, date(2025, 1, 1), []),
        (990_000, date(2099, 1, 1), []),
    ],
)
def test_a_server_by_its_version(version: int, today: date, codes: list[str]) -> None:
    assert [finding.code for finding in durability._of_version(version, "x", today)] == codes


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "shop", no encryption', "database-access"),
        ('FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "shop"', "database-access"),
        ("FATAL:  kein pg_hba.conf-Eintrag für Host »10.0.0.1«, Benutzer »shop«", "database-access"),
        ("FATAL:  the database system is starting up", "database-starting"),
        ('FATAL:  Peer authentication failed for user "shop"', "database-password"),
        ("SSL error: certificate verify failed", "database-tls"),
        ("it did not answer in time", "database-away"),
    ],
)
def test_a_refusal_by_its_text(reason: str, code: str) -> None:
    assert reach._refused("postgresql://db/shop", reason).code == code


def holder(kind: str, **more: Any) -> Any:
    plain = {"kind": kind, "pid": 7, "name": "analytics", "state": None, "since": None, "query_start": None}
    return SimpleNamespace(**plain | {"behind": 2_000_000, "role": None, "address": None} | more)


@pytest.mark.parametrize(
    ("one", "code", "severity"),
    [
        (holder("slot"), "slot-holds-back", "warning"),
        (holder("standby", since=NOW - timedelta(minutes=6)), "standby-holds-back", "warning"),
        (holder("standby", since=NOW - timedelta(hours=2)), "standby-holds-back", "problem"),
        (holder("session", since=NOW - timedelta(minutes=6), state="active"), "transaction-open", "warning"),
        (holder("prepared", since=NOW - timedelta(hours=1)), "prepared-transaction", "problem"),
    ],
)
def test_a_holder_by_its_kind_and_age(one: Any, code: str, severity: str) -> None:
    assert activity._is_old(one, NOW, Thresholds())
    finding = activity._of_holder(one, NOW, Thresholds())
    assert (finding.code, finding.severity) == (code, severity)
    assert finding.what.endswith(".")
    assert "None" not in finding.what


def test_a_young_holder_is_left_alone() -> None:
    assert not activity._is_old(holder("slot", behind=10), NOW, Thresholds())
    assert not activity._is_old(holder("session", since=NOW - timedelta(minutes=4)), NOW, Thresholds())


@pytest.mark.parametrize("lag", [None, timedelta(seconds=90)])
def test_a_standby(lag: timedelta | None) -> None:
    facts: Any = SimpleNamespace(is_standby=True, replay_lag=lag, is_read_only=True)
    (finding,) = durability._of_reading(facts)
    assert finding.code == "server-standby"
    assert ("90 s old" in finding.what) == (lag is not None)


@pytest.mark.parametrize(
    ("client", "expected"), [(None, False), ("127.0.0.1", False), ("::1", False), ("10.0.0.7", True), ("fd00::7", True)]
)
def test_an_address_on_another_machine(client: str | None, *, expected: bool) -> None:
    assert sessions.is_remote(client) == expected


def test_a_name_is_quoted_in_what_is_to_be_pasted() -> None:
    commands = activity._of_holder(holder("prepared", name="it's", since=NOW - timedelta(hours=1)), NOW, Thresholds())
    assert commands.commands == ("COMMIT PREPARED 'it''s';", "ROLLBACK PREPARED 'it''s';")


@pytest.mark.parametrize(
    ("session", "destination", "expected"),
    [
        ("outboxkit relay", "default", True),
        ("outboxkit relay billing", "billing", True),
        ("outboxkit relay billing", "default", False),
        ("outboxkit relay billing", "bill", False),
        ("outboxkit relay", "billing", False),
    ],
)
def test_a_relay_by_its_session(session: str, destination: str, *, expected: bool) -> None:
    assert waiting.serves(session, destination) is expected
