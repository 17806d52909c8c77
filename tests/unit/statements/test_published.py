"""What is read of kept messages. What the statements do is tested in tests/integration/operators/test_published.py."""

from outboxkit import tables
from outboxkit.statements import published


def test_a_page_has_every_column_but_those_of_a_destination_which_a_queue_has_no_use_for():
    route = {"destination", "reply"}
    assert {column.name for column in published.KEPT} == {column.name for column in tables.published.columns} - route
