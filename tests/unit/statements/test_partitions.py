"""Names and bounds of partitions, and the texts that name them. What they do is tested in tests/integration/."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from outboxkit import ids
from outboxkit.statements import partitions
from outboxkit.statements.partitions import INBOX, PUBLISHED, day_of_id, first_id

BOTH = pytest.mark.parametrize("partitioned", [PUBLISHED, INBOX], ids=["published", "inbox"])
DAYS = st.dates(date(1970, 1, 2), date(9990, 1, 1))


@BOTH
@given(day=st.dates())
def test_a_partition_is_named_for_its_day(partitioned: partitions.PartitionedTable, day: date):
    assert partitioned.day_of(partitioned.partition_of(day)) == day


@BOTH
@pytest.mark.parametrize(
    "name",
    ["{}_default", "{}_20260230", "{}_2026", "{}_202603011", "old_{}_20260301", "{}_20260301_pkey"],
)
def test_other_names_have_no_day(partitioned: partitions.PartitionedTable, name: str):
    assert partitioned.day_of(name.format(partitioned.name)) is None


def test_partitions_of_one_table_are_not_those_of_the_other():
    assert INBOX.day_of(PUBLISHED.partition_of(date(2026, 3, 1))) is None
    assert INBOX.lock != PUBLISHED.lock


@pytest.mark.parametrize("schema", ["public", 'My "own" %s schema', "a:b"])
def test_a_schema_is_quoted(schema: str):
    text = str(partitions.drop_partition(INBOX, schema, date(2026, 3, 1)).compile(dialect=postgresql.dialect()))
    quoted = schema.replace('"', '""').replace("%", "%%")
    assert text == f'DROP TABLE "{quoted}"."outboxkit_inbox_20260301"'


def test_a_day_ends_where_the_next_begins():
    for partitioned, bounds in (
        (PUBLISHED, "('2026-02-28 UTC') TO ('2026-03-01 UTC')"),
        (INBOX, f"('{first_id(date(2026, 2, 28))}') TO ('{first_id(date(2026, 3, 1))}')"),
    ):
        text = str(partitions.attach_partition(partitioned, "public", date(2026, 2, 28)).compile())
        assert text.endswith(f"FOR VALUES FROM {bounds}")


@given(DAYS, st.timedeltas(timedelta(0), timedelta(days=1) - timedelta(milliseconds=1)))
def test_every_id_of_a_day_lies_between_its_bounds(day: date, time: timedelta):
    id_ = ids.new(at=datetime(day.year, day.month, day.day, tzinfo=UTC) + time)
    assert first_id(day) < id_ < first_id(day + timedelta(days=1))
    assert day_of_id(id_) == day


@given(DAYS)
def test_the_first_and_the_last_millisecond_of_a_day(day: date):
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    assert first_id(day) <= ids.new(at=midnight)[:13]
    assert ids.new(at=midnight - timedelta(milliseconds=1)) < first_id(day)


def test_days_before_the_first_uuid_are_no_error():
    assert first_id(date(1969, 1, 1)) == first_id(date(1970, 1, 1)) == "00000000-0000"
