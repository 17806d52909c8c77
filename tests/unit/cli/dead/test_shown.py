"""Dead letters as people read them."""

import gzip
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.cli.dead import shown as show
from outboxkit.operators.deadletters import Refusal
from outboxkit.tables import dead_letter
from tests.unit.shop import NOW


def letter(**more: Any) -> Any:
    row = dict.fromkeys(dead_letter.columns.keys()) | {
        "id": 7,
        "side": "outbox",
        "message_id": "m-1",
        "reason": "rejected",
        "attempts": 10,
        "dead_at": NOW,
        "payload": b'{"order_id":7}',
        "headers": b"{}",
        "parked": False,
        "content_type": "application/json",
        "destination": "default",
    }
    return SimpleNamespace(**(row | more), _mapping=row | more)


def text(**more: Any) -> str:
    return "\n".join(show.one(letter(**more), None, NOW))


def test_a_compressed_payload_is_shown_inflated():
    payload = gzip.compress(b'{"order_id":7}', mtime=0)
    shown = text(payload=payload, content_encoding="gzip")
    assert f'payload         {len(payload)} bytes, 14 inflated\n  {{\n    "order_id": 7\n  }}' in shown
    assert show.detailed(letter(payload=payload, content_encoding="gzip"), None)["payload"] == '{"order_id":7}'
    damaged = text(payload=payload[:-1], content_encoding="gzip")
    assert f"payload         {len(payload) - 1} bytes\n  1f 8b" in damaged


def test_no_name_moves_the_cursor():
    shown = text(error="\x1b[2J", type="\x07", headers=b'{"a":"\\u001b["}', payload=b'"\x1b[2J"')
    assert not {"\x1b", "\x07"} & set(shown)


def test_headers_that_cannot_be_read_are_shown_nevertheless():
    assert "(unreadable): b'{'" in text(headers=b"{")


@pytest.mark.parametrize(
    ("more", "why", "line"),
    [
        ({}, None, "goes back to its place in the outbox"),
        ({"side": "inbox", "queue": "billing", "handler": "H"}, None, "goes back to its queue, for this handler"),
        ({"side": "inbox", "queue": "billing"}, None, "goes back to its queue, for all handlers"),
        ({"side": "inbox", "queue": "billing"}, Refusal.STALE, f"stale: {Refusal.STALE.plain}"),
    ],
)
def test_what_a_replay_would_do(more: dict[str, Any], why: Refusal | None, line: str):
    assert f"replay          {line}" in list(show.one(letter(**more), why, NOW))


def test_a_traceback_is_shown_with_its_lines():
    said = text(traceback='Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: \x1b[2J\n')
    assert said.endswith(
        'traceback\n  Traceback (most recent call last):\n    File "a.py", line 1\n  KeyError: \\x1b[2J'
    )
    assert said.count("traceback\n") == 1
    assert show.detailed(letter(traceback="T"), None)["traceback"] == "T"
    assert "traceback" not in text()
