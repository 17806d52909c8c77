"""Dead letters as people read them."""

from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.cli.dead import show
from outboxkit.deadletters import Survey
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
    }
    return SimpleNamespace(**(row | more), _mapping=row | more)


def text(**more: Any) -> str:
    return "\n".join(show.one(letter(**more), NOW))


def test_json_is_laid_out():
    assert 'payload         14 bytes\n  {\n    "order_id": 7\n  }' in text()


def test_other_text_is_shown_as_it_is():
    assert text(payload="grüße\n<a/>".encode()).endswith("\n  grüße\n  <a/>")


def test_bytes_are_shown_by_their_beginning():
    assert text(payload=b"\xff\x00").endswith("payload         2 bytes\n  ff 00")
    assert text(payload=b"\xff" * 65).endswith("ff …")


def test_no_name_moves_the_cursor():
    shown = text(error="\x1b[2J", type="\x07", headers=b'{"a":"\\u001b["}', payload=b'"\x1b[2J"')
    assert not {"\x1b", "\x07"} & set(shown)


def test_headers_that_cannot_be_read_are_shown_nevertheless():
    assert "(unreadable): b'{'" in text(headers=b"{")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "audit           open: neither replayed nor discarded"),
        (
            {"resolution": "replayed", "resolved_by": "alice (database role ops)", "resolved_at": NOW},
            "audit           replayed by alice (database role ops) at 2026-03-01 12:00:00 UTC",
        ),
    ],
)
def test_the_audit_line(more: dict[str, Any], line: str):
    assert line in text(**more).splitlines()


def test_json_of_a_payload():
    assert show.shown(letter())["payload"] == '{"order_id":7}'
    assert show.shown(letter(payload=b"\xff"))["payload_base64"] == b"\xff"
    assert "payload" not in show.listed(letter())


def test_what_a_selection_has():
    survey = Survey([("outbox", "T", "rejected", 1200), ("inbox", None, "malformed", 1)], 1201, 1200, 9, 1, 2)
    assert list(show.kinds(survey, outbox_only=False)) == ["  1 200 T (outbox, rejected)", "  1 - (inbox, malformed)"]
    assert list(show.kinds(survey, outbox_only=True)) == ["  1 200 T (outbox, rejected)"]
    assert show.behind(survey) == "parked by them: 1 key, with 2 waiting messages"
