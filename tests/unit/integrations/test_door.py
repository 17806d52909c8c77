"""What a door decides without any framework."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from outboxkit import problems
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, InProgress, Mismatch, Replay, Response, fingerprint
from outboxkit.integrations import protocol
from outboxkit.integrations.protocol import IncomingRequest, Rules
from outboxkit.problems import Problem

EXPIRES = datetime(2026, 3, 2, 14, 30, 5, 999_999, tzinfo=timezone(timedelta(hours=2)))


def incoming(**other: Any) -> IncomingRequest:
    known: dict[str, Any] = {
        "method": "POST",
        "template": "/orders/{id}",
        "values": {"id": "7"},
        "query": [("a", "1")],
        "keys": ['"k"'],
        "content_type": "application/json",
        "body": b"{}",
    }
    return IncomingRequest(**{**known, **other})


def refused(call: Any, *args: Any) -> Problem:
    with pytest.raises(Problem) as raised:
        call(*args)
    return raised.value


def test_the_ledger_is_asked_for_scope_key_and_fingerprint():
    asked = protocol.keyed_request(incoming(), Rules())
    assert asked is not None
    assert (asked.scope, asked.key) == ("POST /orders/{id}", "k")
    assert asked.fingerprint == fingerprint(
        method="POST",
        template="/orders/{id}",
        values={"id": "7"},
        query=[("a", "1")],
        content_type="application/json",
        body=b"{}",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PATCH"},
        {"template": "/orders/<id>"},
        {"values": {"id": "8"}},
        {"query": []},
        {"content_type": None},
        {"body": b"[]"},
    ],
)
def test_every_part_of_a_request_counts(change: dict[str, Any]):
    asked, other = protocol.keyed_request(incoming(), Rules()), protocol.keyed_request(incoming(**change), Rules())
    assert asked is not None
    assert other is not None
    assert asked.fingerprint != other.fingerprint


def test_a_key_is_needed_unless_it_is_not():
    assert refused(protocol.keyed_request, incoming(keys=[]), Rules()).slug == "key-missing"
    assert protocol.keyed_request(incoming(keys=[]), Rules(required=False)) is None
    assert protocol.keyed_request(incoming(), Rules(required=False)) == protocol.keyed_request(incoming(), Rules())
    assert refused(protocol.keyed_request, incoming(keys=[""]), Rules(required=False)).slug == "key-invalid"


def test_a_body_is_at_most_as_large_as_allowed():
    assert protocol.keyed_request(incoming(body=b"12345"), Rules(max_body=5)) is not None
    problem = refused(protocol.keyed_request, incoming(body=b"123456"), Rules(max_body=5))
    assert (problem.status, problem.slug) == (413, "body-too-large")


def test_a_long_scope_ends_in_a_digest():
    one, other = ("/" + "x" * 300 + end for end in "ab")
    first, second = (protocol.keyed_request(incoming(template=template), Rules()) for template in (one, other))
    assert first is not None
    assert second is not None
    assert len(first.scope) == len(second.scope) == 255
    assert first.scope != second.scope
    assert first.scope.startswith("POST /xxx")
    at_limit = protocol.keyed_request(incoming(template="/" + "x" * 249), Rules())
    assert at_limit is not None
    assert at_limit.scope == "POST /" + "x" * 249


@pytest.mark.parametrize(("template", "readable"), [("/t/a\0b", "/t/a?b"), ("/t/\ud800", "/t/?")])
def test_a_scope_that_no_database_keeps_ends_in_a_digest(template: str, readable: str):
    """A mounted application's path holds what the client wrote there, a NUL as well."""
    asked, other = (protocol.keyed_request(incoming(template=path), Rules()) for path in (template, readable))
    assert asked is not None
    assert other is not None
    assert other.scope == f"POST {readable}"
    assert asked.scope.startswith(f"POST {readable}~")


def test_a_replay_says_that_it_is_one():
    stored = Response(201, (("Location", "/7"), ("X", "1"), ("X", "2")), b"\x00\xff")
    repeated = protocol.answered(Replay(stored, EXPIRES))
    marks = (("Idempotency-Replayed", "true"), ("Idempotency-Expires", "Mon, 02 Mar 2026 12:30:05 GMT"))
    assert repeated == Response(201, (*stored.headers, *marks), b"\x00\xff")


def test_the_other_outcomes_are_problems():
    assert refused(protocol.answered, Mismatch()).document() == problems.key_reused().document()
    assert refused(protocol.answered, InProgress()).headers == (("Retry-After", "1"),)
    assert refused(protocol.answered, InProgress(timedelta(seconds=9.5))).headers == (("Retry-After", "10"),)


def test_the_first_answer_says_until_when_it_is_remembered():
    fresh = Fresh("POST /", None, "k", "t", EXPIRES.astimezone(UTC))
    assert protocol.expires_header(fresh) == ("Idempotency-Expires", "Mon, 02 Mar 2026 12:30:05 GMT")


def test_what_is_kept_of_an_answer():
    gone = [
        *("Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "TE", "Trailer"),
        *("Transfer-Encoding", "Upgrade", "Set-Cookie", "set-cookie", "Content-Length", "Date", "Server"),
        *("Idempotency-Expires", "idempotency-replayed", "IDEMPOTENCY-KEY"),
    ]
    kept = [("Content-Type", "text/plain"), ("X", "1"), ("x", "2"), ("ETag", '"3"'), ("Cookie-Set", "a")]
    found = protocol.stored_part(201, [*((name, "close") for name in gone), *kept], b"body", Rules())
    assert found == Response(201, tuple(kept), b"body")


def test_what_connection_names_is_not_kept():
    headers = [
        ("connection", "close, X-Hop ,ETag"),
        ("x-hop", "1"),
        ("etag", '"3"'),
        ("X", "1"),
        ("Connection", "y"),
        ("Y", "2"),
    ]
    assert protocol.stored_part(200, headers, b"", Rules()).headers == (("X", "1"),)


def test_an_answer_is_at_most_as_large_as_allowed():
    assert protocol.stored_part(200, [], b"12345", Rules(max_response=5)).body == b"12345"
    with pytest.raises(ConfigurationError, match="the response has 6 bytes, and max_response allows 5"):
        protocol.stored_part(200, [], b"123456", Rules(max_response=5))


def test_which_statuses_are_remembered():
    """Decision 29 says why, status by status."""
    unstored = {400, 401, 403, 406, 408, 412, 413, 415, 422, 425, 428, 429}
    assert {status for status in range(100, 600) if not protocol.is_stored(status)} == {
        *range(100, 200),
        *unstored,
        *range(500, 600),
    }


@pytest.mark.parametrize(
    "options",
    [
        {"retention": 3600},
        {"retention": timedelta(0)},
        {"retention": None},
        {"wait": 5},
        {"wait": timedelta(seconds=-1)},
        {"lease": 5.0},
        {"lease": timedelta(0)},
        {"max_body": 0},
        {"max_response": 0},
    ],
)
def test_rules_that_are_none(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match=f"^{next(iter(options))} is .* accepted"):
        Rules(**options)


def test_the_options_are_the_attributes_of_the_rules():
    assert list(protocol.IdempotencyOptions.__annotations__) == list(Rules.__dataclass_fields__)
    for name, annotation in protocol.IdempotencyOptions.__annotations__.items():
        assert Rules.__dataclass_fields__[name].type == annotation, name
