"""Names of partitions, and the texts that name them. What they do is tested in tests/integration/test_partitions.py."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from outboxkit import tables
from outboxkit.statements import published


@given(st.dates())
def test_a_partition_is_named_for_its_day(day: date):
    assert published.day_of(published.partition_of(day)) == day


@pytest.mark.parametrize(
    "name",
    [
        "outboxkit_published_default",
        "outboxkit_published_20260230",
        "outboxkit_published_2026",
        "outboxkit_published_202603011",
        "old_outboxkit_published_20260301",
        "outboxkit_published_20260301_pkey",
    ],
)
def test_other_names_have_no_day(name: str):
    assert published.day_of(name) is None


@pytest.mark.parametrize("schema", ["public", 'My "own" %s schema', "a:b"])
def test_a_schema_is_quoted(schema: str):
    text = str(published.drop_partition(schema, date(2026, 3, 1)).compile(dialect=postgresql.dialect()))
    quoted = schema.replace('"', '""').replace("%", "%%")
    assert text == f'DROP TABLE "{quoted}"."outboxkit_published_20260301"'


def test_a_day_ends_where_the_next_begins():
    text = str(published.attach_partition("public", date(2026, 2, 28)).compile(dialect=postgresql.dialect()))
    assert text.endswith("FOR VALUES FROM ('2026-02-28 UTC') TO ('2026-03-01 UTC')")


def test_a_page_has_every_column():
    assert {column.name for column in published.KEPT} == {column.name for column in tables.published.columns}
