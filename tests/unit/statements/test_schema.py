"""The version that the tables say."""

from sqlalchemy import Engine

from outboxkit.statements import schema
from outboxkit.tables import SCHEMA_VERSION


def test_the_tables_say_their_version(engine: Engine):
    with engine.connect() as connection:
        assert connection.execute(schema.current_version()).scalar_one() == SCHEMA_VERSION
