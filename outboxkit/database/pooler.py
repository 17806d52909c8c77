"""The pooler in front of PostgreSQL: a worker needs sessions that keep a server process of their own behind it."""

from sqlalchemy.exc import DBAPIError

from outboxkit import statements
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors import ConfigurationError
from outboxkit.errors.sqlstates import UNPREPARED, sqlstate_of
from outboxkit.statements.dialects import is_server

FOUND = "A session does not keep its state: a pooler in transaction mode is between here and the server."
POOLER_CURE = (
    "Connect relays, consumers and prune to the server directly, or to a pool in session mode. Applications that only "
    "add messages may keep this one, with statements that are not prepared. For PgBouncer, a database line of its own "
    "does it:"
)
COMMAND = "shop_workers = host=... dbname=... pool_mode=session"
_TURNS = "0110" * 3
"""The two sessions' transactions, one after another. A pooler may hand out the process that was freed last: both
sessions get the same one. Or it hands them out in turn: the second session gets two of them."""


async def keeps_sessions(engine: AsyncEngine) -> bool:
    """Whether each of two sessions has one server process in all of its transactions, and not the other's."""
    if not is_server(engine.dialect.name):
        return True
    processes = set[tuple[str, int]]()
    async with engine.connect() as first, engine.connect() as second:
        for connection in (first, second):
            await connection.rollback()
        for turn in _TURNS:
            connection = second if int(turn) else first
            processes.add((turn, (await connection.execute(statements.server.process_id())).scalar_one()))
            await connection.rollback()
    return len(processes) == len({process for _, process in processes}) == len(set(_TURNS))


async def check_sessions(engine: AsyncEngine) -> None:
    """Make sure that a worker's sessions keep their state.

    Raises:
        ConfigurationError: a pooler in transaction mode is in between; the text says what to do.
    """
    if not await keeps_sessions(engine):
        raise ConfigurationError(f"{FOUND} {POOLER_CURE} {COMMAND}")


async def blame_pooler(engine: AsyncEngine, error: BaseException | None) -> None:
    """`check_sessions`, if this error says that a session does not have a prepared statement that it should have.

    Raises:
        ConfigurationError: as `check_sessions`; nothing if the database is away.
    """
    if error is None or sqlstate_of(error) not in UNPREPARED:
        return
    try:
        await check_sessions(engine)
    except DBAPIError:
        return
