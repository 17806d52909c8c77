"""Where the shop keeps its tables and those of outboxkit: an SQLite file, or what `OUTBOXKIT_DATABASE_URL` names."""

import os
from pathlib import Path

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.orm import scoped_session, sessionmaker

from outboxkit import migrations
from shop.orders import Base

DATA = Path(os.environ.get("SHOP_DATA") or Path(__file__).parents[1] / "data").absolute()
DATA.mkdir(parents=True, exist_ok=True)

URL = os.environ.get("OUTBOXKIT_DATABASE_URL") or f"sqlite:///{DATA / 'shop.db'}"
ON_SQLITE = make_url(URL).get_backend_name() == "sqlite"
# An effect is noted while a handler's transaction is open, which on SQLite keeps every other writer of its file out.
EFFECTS_URL = f"sqlite:///{make_url(URL).database}-effects.db" if ON_SQLITE else URL


def connect(url: str) -> Engine:
    if not ON_SQLITE:
        return create_engine(make_url(url).set(drivername="postgresql+psycopg"), pool_size=10)
    engine = create_engine(make_url(url).set(drivername="sqlite"), connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def settle_in(connection, _) -> None:
        connection.isolation_level = None  # the driver would begin only before the first write
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def begin(connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


engine = connect(URL)
session = scoped_session(sessionmaker(engine, expire_on_commit=False))
effects_engine = connect(EFFECTS_URL)
effect_sessions = sessionmaker(effects_engine)


def migrate() -> None:
    for each in (engine, effects_engine):
        with each.begin() as connection:
            migrations.migrate(connection)
    Base.metadata.create_all(engine)


def close() -> None:
    engine.dispose()
    effects_engine.dispose()
