"""What came from any client, was kept as JSON, and must be something that the relay can publish."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp.header import ContentHeader

from outboxkit.brokers.rabbitmq.encode import FRAME_OVERHEAD, HEADER_OVERHEAD, Encoder
from outboxkit.codec import headers as own
from outboxkit.codec.headers import MAX_DEPTH, carried, without_own
from outboxkit.message import Message
from outboxkit.operators.deadletters import refusal
from tests.unit.shop import NOW

FRAME_MAX = 131_072
LONGEST = "é" * 127


def letter(stored: bytes, **more: Any) -> Any:
    return SimpleNamespace(
        **({"headers": stored, "queue": "billing", "handler": None, "message_id": "m", "type": "T"} | more)
    )


def written(kept: dict[str, object]) -> dict[str, Any]:
    """What a consumer reads of these headers, once the relay has written them beside the longest of all else."""
    encoder = Encoder("x" * 255, app_id="x" * 255, channel=1, frame_max=FRAME_MAX)
    message = Message(
        **dict.fromkeys(("id", "type", "key", "topic", "correlation_id", "causation_id", "content_type"), LONGEST),
        payload=b"",
        queue="q" * 255,
        headers=kept | {own.HANDLERS: ["h" * 255], own.ACCEPTED: 2**53, own.REPLAYED: True},
        created_at=NOW,
        content_encoding=LONGEST,
    )
    pieces: list[bytes] = []
    encoder.write(message, pieces)
    assert len(pieces[2]) + HEADER_OVERHEAD + FRAME_OVERHEAD <= FRAME_MAX
    header = ContentHeader()
    header.unmarshal(pieces[1][8:] + pieces[2])
    return without_own(header.properties.headers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(max_size=300), JSON))
@example({"deep": json.loads("[" * 200 + "]" * 200)})
@example({"many": list(range(50_000)), "small": 1})
@example({"long": "x" * 200_000, "small": 1})
@example({str(number): "x" * 100 for number in range(3000)})
@example({"nested": {"x" * 300: 1, "n" * 129: 1, "": 1, "big": 2**70, "float": 1e308, "third": 1 / 3, "half": 0.5}})
def test_the_relay_can_publish_them_whatever_they_are(found: dict[str, object]):
    assert written(carried(found)) == carried(found)


def test_what_amqp_carries_stays_as_it_is():
    found = {"text": "grüße", "none": None, "yes": True, "int": -(2**63), "float": 1 / 3, "list": [1, ["a", 5]]}
    found |= {"table": {"a": {"b": None}}, "n" * 128: 1}
    assert carried(found) == found == written(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2**63, str(2**63)), ([2**64], [str(2**64)]), ([0.5], ["0.5"]), ({"a": 1e308}, {"a": "1e+308"})],
)
def test_numbers_that_do_not_fit_become_text(value: object, text: object):
    assert carried({"a": value}) == {"a": text}


@pytest.mark.parametrize("name", ["", "n" * 129, "é" * 65, "outboxkit-attempt", "CC", "BCC"])
def test_what_is_left_out(name: str):
    assert carried({name: ["x"], "kept": 1}) == {"kept": 1}


def test_what_is_deeper_than_any_driver_reads_becomes_text():
    found = carried({"a": json.loads("[" * 40 + "]" * 40)})["a"]
    for _ in range(MAX_DEPTH - 1):
        (found,) = found
    assert found == ["[" * 8 + "]" * 8]


@pytest.mark.parametrize("stored", [b"{", b"[]", b"\xff", b'{"a":1e999}', b'{"a":' + b"[" * 9999 + b"]" * 9999 + b"}"])
def test_headers_that_cannot_be_read_are_an_error(stored: bytes):
    with pytest.raises(ValueError, match=r".+"):
        refusal.of_replay(letter(stored), accepted_at=None)
