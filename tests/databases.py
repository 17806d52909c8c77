"""Databases with outboxkit's tables."""

from sqlalchemy import create_engine

from outboxkit import migrations


def migrate(url: str) -> None:
    """Create outboxkit's tables, and leave no connection behind."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.migrate(connection)
    engine.dispose()
