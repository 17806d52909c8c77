"""The database of the shop's tables and outboxkit's: an SQLite file, or the one in `OUTBOXKIT_DATABASE_URL`."""

import os
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker

from outboxkit.runtime import process
from outboxkit.schema import migrations
from shop.orders import Base

DATA = Path(os.environ.get("SHOP_DATA") or Path(__file__).parents[1] / "data").absolute()
DATA.mkdir(parents=True, exist_ok=True)

URL = os.environ.get("OUTBOXKIT_DATABASE_URL") or f"sqlite:///{DATA / 'shop.db'}"
ON_SQLITE = make_url(URL).get_backend_name() == "sqlite"
# An effect is noted while a handler's transaction is open, which on SQLite keeps every other writer of its file out.
EFFECTS_URL = f"sqlite:///{make_url(URL).database}-effects.db" if ON_SQLITE else URL

effects_engine = process.engine(EFFECTS_URL, name="shop effects")
effect_sessions = async_sessionmaker(effects_engine)


async def migrate() -> None:
    engine = process.engine(URL, name="shop migrate")
    for each in (engine, effects_engine):
        async with each.begin() as connection:
            await connection.run_sync(migrations.migrate)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()
