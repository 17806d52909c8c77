"""A message's headers: nothing lost, nothing that says where a request goes."""

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers.http import request
from outboxkit.brokers.http.request import (
    headers_of,
    key_of,
    percent_encoded,
    refusal_of,
    users_headers,
)
from outboxkit.http.request import parse_key
from outboxkit.message import Message

IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)


def made(id_: str = "1", **more: object) -> Message:
    return Message(**{"id": id_, "type": "ChargeCard", "payload": b"{}", **more})


def test_a_plain_message_has_few_headers():
    assert headers_of(made(), source=None) == {
        "content-type": "application/json",
        "idempotency-key": '"1"',
        "outboxkit-type": "ChargeCard",
    }


@given(IDS)
def test_every_id_becomes_a_key_that_receivers_take(id_: str):
    key = headers_of(made(id_), source=None)["idempotency-key"]
    assert parse_key([key]) == key_of(made(id_))
    assert len(key_of(made(id_))) <= request.KEY_LIMIT


@given(IDS, IDS)
def test_other_ids_are_other_keys(one: str, other: str):
    assert (key_of(made(one)) == key_of(made(other))) == (one == other)


@pytest.mark.parametrize(("one", "other"), [("é", "%C3%A9"), (" ", "%20"), ("%", "%25"), ("a", "A")])
def test_an_id_that_looks_like_another_one_encoded_is_another_key(one: str, other: str):
    assert key_of(made(one)) != key_of(made(other))


def test_an_id_that_gets_too_long_is_replaced_by_one_that_stays():
    long = made("é" * 127)
    assert len(key_of(long)) == 36
    assert key_of(long) == key_of(made("é" * 127)) != key_of(made("é" * 126))
    assert key_of(made("a" * 255)) == "a" * 255


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_encoded_without_loss(text: str):
    assert unquote(percent_encoded(text)) == text
    assert all(0x21 <= ord(each) <= 0x7E and each != '"' for each in percent_encoded(text))


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "AUTHORIZATION", "Cookie", "Content-Length", "content_length", "Transfer-Encoding", "Connection"),
        *("TE", "Keep-Alive", "Upgrade", "Trailer", "Proxy-Authorization", "Expect", "User-Agent", "Accept-Encoding"),
        *(
            "Range",
            "Idempotency-Key",
            "idempotency_key",
            "ce-id",
            "webhook-signature",
            "outboxkit-key",
            "X-Forwarded-Host",
        ),
        *("X-HTTP-Method-Override", "X-Original-URL", "If-Match", "Forwarded", "Content-Type", "Date"),
        *("", "a b", "a:b", "a\r\nb", "é", "a\0", "(a)"),
    ],
)
def test_a_name_that_is_harmful_or_none_is_left_out(name: str):
    assert users_headers({name: "x", "tenant": "acme"}) == {"tenant": "acme"}


def test_values_of_the_users_own_headers():
    given_ = {
        "a": True,
        "b": False,
        "c": 3,
        "d": None,
        "e": "x y",
        "f": "",
        "g": "Zoë",
        "h": "a\r\nb",
        "I": " x",
        "i": "2",
    }
    expected = {"a": "true", "b": "false", "c": "3", "e": "x y", "f": "", "g": "Zo%C3%AB", "h": "a%0D%0Ab", "i": "%20x"}
    assert users_headers(given_) == expected


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12) | st.integers() | st.booleans() | st.none()))
def test_no_header_breaks_a_line_or_takes_a_reserved_place(headers: dict[str, object]):
    for name, value in headers_of(made(headers=headers), source="x").items():
        assert name == name.lower()
        assert (name + value).isascii()
        assert (name + value).isprintable()
        assert value == value.strip()


@pytest.mark.parametrize("field", ["content_type", "content_encoding"])
@pytest.mark.parametrize("value", ["a\r\nb: c", "é", " a", "a\t"])
def test_a_content_type_that_is_no_header_is_unsendable(field: str, value: str):
    with pytest.raises(ValueError, match=field.replace("_", " ")):
        headers_of(made(**{field: value}), source=None)


def test_cloudevents_are_in_binary_mode():
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    message = made(
        'a "b"', type="T é", created_at=at, content_type="text/plain", headers={"ce-id": "x", "CE-Source": "y"}
    )
    found = headers_of(message, source="/shop 1")
    assert {name: value for name, value in found.items() if name.startswith("ce-")} == {
        "ce-specversion": "1.0",
        "ce-id": "a%20%22b%22",
        "ce-type": "T%20%C3%A9",
        "ce-source": "/shop%201",
        "ce-time": "2026-01-02T02:04:05Z",
        "ce-outboxkitid": "a%20%22b%22",
    }
    assert found["content-type"] == "text/plain"
    assert "ce-time" not in headers_of(made(), source="x")
    assert headers_of(made(created_at=at.astimezone(UTC)), source="x")["ce-time"] == "2026-01-02T02:04:05Z"


def test_a_version_is_told_unless_it_is_the_first():
    plain, event = headers_of(made(version=2), source=None), headers_of(made(version=2), source="x")
    assert (plain["outboxkit-version"], plain.get("ce-dataversion")) == ("2", None)
    assert (event["outboxkit-version"], event["ce-dataversion"]) == ("2", "2")
    assert not {"outboxkit-version", "ce-dataversion"} & headers_of(made(), source="x").keys()


def test_what_is_for_a_queue_is_refused():
    assert refusal_of(made()) is None
    assert "'billing'" in str(refusal_of(made(queue="billing")))


def test_a_long_value_takes_no_longer_than_it_has_characters():
    value = "x" * 1_000_000 + "é"
    assert users_headers({"tracestate": value}) == {"tracestate": "x" * 1_000_000 + "%C3%A9"}
