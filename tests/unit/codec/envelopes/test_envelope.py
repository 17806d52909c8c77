"""Whatever a stranger sends: a reader returns a message that every table can hold, or says why it does not."""

import json
import tracemalloc
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import DecodeError, Message
from outboxkit.codec.compression import INFLATED_LIMIT
from outboxkit.codec.envelopes import READERS, Envelope, reader_for
from outboxkit.codec.envelopes.envelope import Reader, read_with
from outboxkit.codec.headers import carried, encode_foreign_headers
from outboxkit.codec.rows import decode_headers, to_row
from tests.unit.codec.envelopes import samples
from tests.unit.shop import message

EACH = tuple(made() for made in READERS.values())
NESTED = b"[" * 10_000 + b"]" * 10_000
HOSTILE_DOCUMENTS = (
    *(b"", b"\x00", b"\xff\xfe", b"{", b"[]", b"null", b"NaN", b'"text"', b"1e400", b"9" * 5000, NESTED),
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    *(
        json.dumps(samples.ATTRIBUTES | {"data": 1}).replace('"data": 1', f'"data": {data}').encode()
        for data in ("NaN", "1e999", "9" * 5000, "[" * 10_000 + "]" * 10_000, '"\\ud800"', '"\\u0000"')
    ),
    *(json.dumps(samples.ATTRIBUTES | {"id": id_}).encode() for id_ in (None, "", "i" * 10_000, "\0", [], 1, True)),
    *(json.dumps(samples.ATTRIBUTES | {"type": type_}).encode() for type_ in ("\ud800", "a\0b", "t" * 300)),
    b'{"specversion":"1.0","id":"a","id":"b","source":"s","type":"t","type":"u"}',
)
CONTENT_TYPES = (None, "text/plain", "application/json", "application/cloudevents+json")
VALUES = (
    *(None, True, -1, 2**63, 1.5, float("nan"), "", "\0", "x" * 10_000, b"\xff", [], [[]] * 100, {}, {"a": {"b": 1}}),
    *(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), datetime(2026, 1, 1)),  # noqa: DTZ001 - naive
)


def settle(envelope: Envelope) -> None:
    """Read it, and store and send what came out."""
    try:
        found = read_with(EACH, envelope)
    except DecodeError as error:
        found, text = None, str(error)
        assert 0 < len(text) < 1000
    if found is not None:
        assert Message(**{each.name: getattr(found, each.name) for each in fields(Message)}) == found
        kept = decode_headers(encode_foreign_headers(found.headers))  # as a dead letter has them
        msgspec.json.encode(carried(kept))
        to_row(replace(found, headers={}))


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_hostile_documents(content_type: str | None):
    for body in HOSTILE_DOCUMENTS:
        for encoding in (None, "gzip", "zstd", "br"):
            settle(Envelope(body, content_type=content_type, content_encoding=encoding, message_id="m"))


def test_hostile_headers():
    for envelope in samples.ALL:
        for name in {*envelope.headers, "traceparent", "ce-specversion"}:
            for value in VALUES:
                settle(replace(envelope, headers={**envelope.headers, name: value}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*samples.ATTRIBUTES, "data", "data_base64"]) | st.text(max_size=5)


@given(st.data())
def test_any_change_of_an_envelope(data: st.DataObject):
    envelope = data.draw(st.sampled_from(samples.ALL))
    try:
        document = json.loads(envelope.body)
    except ValueError:
        document = {}
    changes = data.draw(st.dictionaries(NAMES, JSON, max_size=3))
    body = json.dumps(document | changes if isinstance(document, dict) else [*document, *changes.values()]).encode()
    start = data.draw(st.integers(0, len(body)))
    body = body[:start] + data.draw(st.binary(max_size=3)) + body[start + data.draw(st.integers(0, 3)) :]
    headers = data.draw(st.dictionaries(st.sampled_from([*envelope.headers, "id"]), JSON | st.binary(), max_size=2))
    settle(replace(envelope, body=body, headers={**envelope.headers, **headers}))


@given(
    st.binary(max_size=200), st.sampled_from(CONTENT_TYPES), st.dictionaries(st.text(), JSON | st.binary(), max_size=3)
)
def test_any_bytes(body: bytes, content_type: str | None, headers: dict[str, Any]):
    settle(Envelope(body, headers=headers, content_type=content_type))


def test_a_large_envelope_takes_no_more_memory_than_its_size():
    attributes = b",".join(b'"%d":1' % n for n in range(900_000))
    body = b'{"specversion":"1.0","id":"a","source":"s","type":"t",' + attributes + b"}"
    assert len(body) < INFLATED_LIMIT
    tracemalloc.start()
    with pytest.raises(DecodeError):
        read_with(EACH, Envelope(body, content_type="application/cloudevents+json"))
    assert tracemalloc.get_traced_memory()[1] < len(body)
    tracemalloc.stop()


def test_an_envelope_over_the_limit_is_not_parsed():
    with pytest.raises(DecodeError, match=f"at most {INFLATED_LIMIT} are read"):
        read_with(EACH, replace(samples.STRUCTURED, body=samples.STRUCTURED.body + b" " * INFLATED_LIMIT))


def test_readers_are_asked_in_their_order():
    first, second = message(id="first"), message(id="second")
    found: tuple[Reader, ...] = (lambda _: None, lambda _: first, lambda _: second)
    assert read_with(found, Envelope(b"")) is first
    assert read_with((), Envelope(b"")) is None


def failing(_: Envelope) -> Message:
    raise KeyError("no\nid" * 1000)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def raising(error: BaseException) -> Any:
    def reader(_: Envelope) -> Message:
        raise error

    return reader


@pytest.mark.parametrize(
    ("reader", "error"),
    [
        (raising(Mute()), "reader reader failed: Mute: (its text cannot be read: ValueError)"),
        (failing, "reader failing failed: KeyError: "),
        (lambda _: {"id": 1}, "reader <lambda> returned dict; a Message or None is accepted"),
        (lambda _: Message("", "T", b""), "reader <lambda>: a message needs an id"),
    ],
)
def test_a_reader_that_fails_says_so(reader: Any, error: str):
    with pytest.raises(DecodeError) as raised:
        read_with((reader,), Envelope(b""))
    assert str(raised.value).startswith(error)
    assert len(str(raised.value)) < 1000
    assert "\n" not in str(raised.value)


def test_a_built_in_reader_that_refuses_an_envelope_knows_it():
    assert reader_for(replace(samples.STRUCTURED, body=b"{}")) == "cloudevents"
    assert reader_for(Envelope(body=b"{}", content_type="application/json")) is None
