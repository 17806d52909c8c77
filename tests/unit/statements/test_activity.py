"""What is asked of PostgreSQL's catalogs; tests/integration/operators/test_status.py asks it."""

import re

import pytest

from outboxkit.statements import activity

STATEMENTS = [activity.sessions(), activity.oldest_transaction(), activity.vacuum()]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_query_text_is_read(statement: object):
    """It may hold other people's secrets."""
    assert not re.search(r"\bquery\b|\*", str(statement))


@pytest.mark.parametrize("statement", STATEMENTS[:2])
def test_this_session_is_left_out(statement: object):
    assert "pid <> pg_backend_pid()" in str(statement)
