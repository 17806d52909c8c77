"""Judgements on what a test cannot have a server show, such as old slots and standbys."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.operators.doctor import server, sessions
from outboxkit.operators.findings import LIMITS

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def database(*rows: Any) -> Any:
    """A database that has these rows for each statement, and no connections in use."""
    clients = SimpleNamespace(used=1, most=100)
    return SimpleNamespace(
        now=NOW, limits=LIMITS, rows=lambda statement: [clients] if "used" in str(statement) else rows
    )


def holder(kind: str, **more: Any) -> Any:
    plain = {"kind": kind, "pid": 7, "name": "analytics", "state": None, "since": None, "query_start": None}
    return SimpleNamespace(**plain | {"behind": 2_000_000, "role": None, "address": None} | more)


@pytest.mark.parametrize(
    ("one", "code", "severity"),
    [
        (holder("slot"), "vacuum-held-back", "warning"),
        (holder("standby", since=NOW - timedelta(minutes=6)), "vacuum-held-back", "warning"),
        (holder("standby", since=NOW - timedelta(hours=2)), "vacuum-held-back", "problem"),
        (holder("session", since=NOW - timedelta(minutes=6), state="active"), "transaction-open", "warning"),
        (holder("prepared", since=NOW - timedelta(hours=1)), "vacuum-held-back", "problem"),
    ],
)
def test_a_holder_by_its_kind_and_age(one: Any, code: str, severity: str) -> None:
    (finding,) = sessions.check_transactions(database(one)) if one.since else [sessions._of_holder(one, database())]
    assert (finding.code, finding.severity) == (code, severity)
    assert finding.what.endswith(".")
    assert "None" not in finding.what


def test_a_young_holder_is_left_alone() -> None:
    assert not sessions._is_old(holder("slot", behind=10), database())
    assert not sessions._is_old(holder("session", since=NOW - timedelta(minutes=4)), database())


@pytest.mark.parametrize("lag", [None, timedelta(seconds=90)])
def test_a_standby(lag: timedelta | None) -> None:
    facts = SimpleNamespace(is_standby=True, replay_lag=lag, is_read_only=True)
    (finding,) = server.check_writes(database(facts))
    assert finding.code == "server-read-only"
    assert ("90 s old" in finding.what) == (lag is not None)


def test_a_name_is_quoted_in_what_is_to_be_pasted() -> None:
    finding = sessions._of_holder(holder("prepared", name="it's", since=NOW - timedelta(hours=1)), database())
    assert finding.commands == ("COMMIT PREPARED 'it''s';", "ROLLBACK PREPARED 'it''s';")
