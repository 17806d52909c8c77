"""Dead letters as people read them."""

import gzip
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from outboxkit.cli.dead import show
from outboxkit.operators.deadletters import Refusal, Survey
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


def test_json_is_laid_out():
    assert 'payload         14 bytes\n  {\n    "order_id": 7\n  }' in text()


def test_other_text_is_shown_as_it_is():
    assert text(payload="grüße\n<a/>".encode()).endswith("\n  grüße\n  <a/>")


def test_bytes_are_shown_by_their_beginning():
    assert text(payload=b"\xff\x00").endswith("payload         2 bytes\n  ff 00")
    assert text(payload=b"\xff" * 65).endswith("ff …")


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
    assert show.detailed(letter(), None)["payload"] == '{"order_id":7}'
    assert show.detailed(letter(payload=b"\xff"), None)["payload_base64"] == b"\xff"
    assert "payload" not in show.listed(letter(), None)


@pytest.mark.parametrize(
    ("more", "why", "state"),
    [
        ({}, None, "open"),
        ({"parked": True}, None, "parked"),
        ({"side": "inbox"}, Refusal.STALE, "stale"),
        ({"side": "inbox", "resolution": "discarded"}, Refusal.STALE, "discarded"),
    ],
)
def test_the_state_in_a_word(more: dict[str, Any], why: Refusal | None, state: str):
    assert show.state(letter(**more), why) == state


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


def test_nothing_is_said_of_a_replay_of_what_is_resolved():
    lines = show.one(letter(resolution="replayed", resolved_by="alice", resolved_at=NOW), Refusal.STALE, NOW)
    assert not any(line.startswith("replay ") for line in lines)


def test_a_legend_explains_what_a_list_has_and_nothing_else():
    rows = [letter(), letter(resolution="discarded"), letter(), letter()]
    refused = [Refusal.STALE, Refusal.NO_QUEUE, None, Refusal.STALE]
    assert list(show.legend(rows, refused)) == [f"stale: {Refusal.STALE.plain}"]


def test_what_a_selection_has():
    kinds = [(("outbox", "T", "rejected"), 1200), (("inbox", "T", "failed"), 3), (("inbox", None, "malformed"), 1)]
    refused = Counter({(kinds[1][0], Refusal.STALE): 2, (kinds[2][0], Refusal.MALFORMED): 1})
    survey = Survey(kinds, 1204, refused, accepted=0, upto=9, keys=1, waiting=2)
    all_ = ["  1 200 T (outbox, rejected)", "  3 T (inbox, failed)", "  1 - (inbox, malformed)"]
    assert list(show.kinds(survey, replayable=False)) == all_
    assert list(show.kinds(survey, replayable=True)) == [all_[0], "  1 T (inbox, failed)"]
    assert survey.replayable == 1201
    assert list(show.refusals(survey)) == [
        f"refused: 2, stale: {Refusal.STALE.plain}",
        f"refused: 1, malformed: {Refusal.MALFORMED.plain}",
    ]
    assert show.behind(survey) == "parked by them: 1 key, with 2 waiting messages"


def test_accepting_what_is_stale_is_said_aloud():
    survey = Survey([(("inbox", "T", "stale"), 2)], 2, Counter(), accepted=2, upto=9, keys=0, waiting=0)
    (line,) = show.refusals(survey)
    assert line == "accepted: 2, stale: they get the time of the replay, and their effects may happen twice"


def test_a_destination_is_named_where_it_is_another_than_the_default():
    assert not any(line.startswith(("destination", "reply")) for line in text().splitlines())
    lines = text(destination="payments", reply="CardCharged").splitlines()
    assert {"destination     payments", "reply           CardCharged"} <= {*lines}
    sides = list(show.table([letter(), letter(destination="payments")], [None, None], NOW).columns[4].cells)
    assert [side.plain for side in sides] == ["outbox", "outbox: payments"]
    assert show.listed(letter(destination="payments"), None)["destination"] == "payments"


def test_the_decoders_own_frames_are_left_out():
    ours = (
        'Traceback (most recent call last):\n  File "/v/site-packages/outboxkit/codec/payloads.py", line 1, in decode\n'
    )
    users = ours + '  File "/srv/shop/events.py", line 7, in __post_init__\n'
    assert "traceback\n" not in text(reason="undecodable", traceback=ours + "DecodeError: no\n")
    assert "shop/events.py" in text(reason="undecodable", traceback=users + "DecodeError: no\n")
    assert "payloads.py" in text(reason="failed", traceback=ours + "KeyError: no\n")


def test_a_traceback_is_shown_with_its_lines():
    said = text(traceback='Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: \x1b[2J\n')
    assert 'traceback\n  Traceback (most recent call last):\n    File "a.py", line 1\n  KeyError: \\x1b[2J\n' in said
    assert said.count("traceback\n") == 1
    assert show.detailed(letter(traceback="T"), None)["traceback"] == "T"
    assert "traceback" not in text()
