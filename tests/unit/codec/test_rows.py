"""A message in a row, and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import EncodeError, tables
from outboxkit.codec.headers import OWN
from outboxkit.codec.rows import COLUMNS, TEXTS, from_claimed, from_row, to_row
from outboxkit.message import MAX_VERSION, Message
from tests.unit.shop import NOW, message

SHORT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)
NAMES = SHORT.map(lambda name: name[:32]).filter(lambda name: not name.startswith(OWN))
MESSAGES = st.builds(
    Message,
    id=SHORT,
    type=SHORT,
    payload=st.binary(max_size=20),
    key=st.none() | SHORT,
    topic=st.none() | SHORT,
    headers=st.dictionaries(NAMES, st.none() | SHORT | st.booleans(), max_size=2),
    correlation_id=st.none() | SHORT,
    causation_id=st.none() | SHORT,
    created_at=st.none() | st.just(NOW),
    content_type=SHORT,
    content_encoding=st.none() | SHORT,
    queue=st.none() | SHORT,
    version=st.integers(1, MAX_VERSION),
)


@given(MESSAGES)
def test_what_is_written_is_read(sent: Message):
    assert from_row(list(to_row(sent).values())) == sent
    assert from_claimed(list(to_row(sent).values())) == (sent, None)


@pytest.mark.parametrize("table", [tables.outbox, tables.published, tables.dead_letter])
def test_every_table_of_messages_has_the_columns(table: Any):
    assert {*COLUMNS} <= {*table.columns.keys()}
    assert {*TEXTS} < {*COLUMNS}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("headers", b'{"a', "its headers cannot be read: DecodeError"),
        ("headers", 7, "its headers cannot be read: TypeError"),
        ("payload", "text", "its payload is not bytes"),
        ("version", "two", "its version is not a number"),
    ],
)
def test_a_row_that_somebody_else_wrote_is_told_with_its_fault(column: str, value: object, reason: str):
    values = list(to_row(message(id="m-1")).values())
    values[COLUMNS.index(column)] = value
    claimed, unreadable = from_claimed(values)
    assert (claimed.id, dict(claimed.headers), unreadable) == ("m-1", {}, reason)


def test_a_row_that_is_no_message_is_refused():
    with pytest.raises(EncodeError, match="needs a type"):
        from_row(["m-1", "", *list(to_row(message()).values())[2:]])
