"""The lives of messages: what the tables of one or several services know of a message, from its `add` to its handlers.

`reading` asks a database, `reasons`, `timeline` and `story` assemble what it says.
"""

from collections.abc import Sequence
from datetime import timedelta

from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.operators.trace.clue import Clue
from outboxkit.operators.trace.entries import SHORTEST, Archive
from outboxkit.operators.trace.reading import find_messages, find_outcomes
from outboxkit.operators.trace.searching import ENOUGH
from outboxkit.operators.trace.story import Life, lives, selected
from outboxkit.runtime import urls
from outboxkit.runtime.engines import snapshot
from outboxkit.schema import partitions

__all__ = ["ENOUGH", "SHORTEST", "Archive", "Clue", "Life", "follow", "lives", "selected"]


async def follow(engines: Sequence[AsyncEngine], clue: Clue, *, patience: timedelta) -> list[Archive]:
    """Look for the messages of a clue in these databases, each in a snapshot of its own; nothing is written.

    Args:
        engines: of the databases, the first one first.
        clue: what is looked for; it learns what is found.
        patience: the time for each table that no index leads to.

    Raises:
        SchemaError: the tables of a database are missing or old.
        sqlalchemy.exc.DBAPIError: a database is away.
    """
    archives, searched = dict[int, Archive](), dict[int, frozenset[str]]()
    for _ in range(2):  # a database may name the story that another one has to be searched for
        for number, engine in enumerate(engines):
            if searched.get(number) == frozenset(clue.stories):
                continue
            searched[number] = frozenset(clue.stories)
            with urls.naming(engine.url):
                async with snapshot(engine).connect() as connection:
                    now = await partitions.clock(connection)
                    archive = archives.setdefault(number, Archive(urls.shown(engine.url), now))
                    await connection.run_sync(find_messages, clue, archive, patience=patience)
    for number, engine in enumerate(engines):
        with urls.naming(engine.url):
            async with snapshot(engine).connect() as connection:
                await connection.run_sync(find_outcomes, clue, archives[number])
    return list(archives.values())
