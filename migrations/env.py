"""The Alembic environment of the development database. One of yours differs in `target_metadata` only."""

from alembic import context
from sqlalchemy import create_engine

import outboxkit
from outboxkit.runtime import settings

target_metadata = [outboxkit.metadata]  # an application puts its own first: [Base.metadata, outboxkit.metadata]
url = settings.load().database_url.get_secret_value()


def run_offline() -> None:
    context.configure(url=url, target_metadata=target_metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=target_metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
