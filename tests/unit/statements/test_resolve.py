"""What goes back. Integration tests (test_deadletters.py, test_sending_back.py) test what the statements do."""

from sqlalchemy.sql.dml import Insert

from outboxkit import tables
from outboxkit.statements import resolve

LEFT = {"attempts", "last_error", "first_failed_at", "expires_at", "dedup"}
"""What begins anew, or is not for a message that was given up on once. A new column goes back, or is named here."""


def columns(statement: Insert) -> set[str]:
    return set(statement.select.selected_columns.keys())


def test_what_goes_back_to_its_place_is_all_that_a_message_has():
    back = columns(resolve.put_back("postgresql")) | {"due_at", "held"}
    assert {column.name for column in tables.outbox.columns} - LEFT <= back


def test_what_goes_to_its_queue_is_a_new_row_at_a_new_place():
    new = {"position", "due_at", "held", "discard_unroutable", "destination", "reply"}
    sent = columns(resolve.send_back()) - {"anon_1"} | {"headers"}
    assert {column.name for column in tables.outbox.columns} - LEFT - new <= sent
    assert not sent & new


def test_no_payload_travels():
    assert "payload" not in {column.name for column in resolve.envelopes("postgresql").selected_columns}
