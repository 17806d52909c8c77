"""The tables as the server keeps them: dead rows, autovacuum, indexes, and the numbers that are left."""

from collections.abc import AsyncGenerator

from outboxkit import statements
from outboxkit.errors.wording import many, number, printable_name, span
from outboxkit.operators.doctor.diagnosis import problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.schema import partitions

_STOPS_AT = 2_146_000_000
"""The age of a transaction id at which PostgreSQL takes no more writes."""
_SOON = 1.6
"""Times the threshold: autovacuum then drops everything else (`vacuum_failsafe_age`)."""
_USED, _USED_UP = 0.5, 0.9
"""Shares of an identity column's numbers."""


async def check_vacuum(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Whether autovacuum works, and how far it is behind on outboxkit's tables."""
    async with installation.database() as connection:
        now = await partitions.clock(connection)
        settings = {row.name: row.setting for row in await connection.execute(statements.server.settings())}
        tables = (await connection.execute(statements.doctor.dead_rows())).all()
    why = "A relay deletes every row that it has published. Without vacuum the outbox grows for ever and slows down."
    for name in ("autovacuum", "track_counts"):
        if settings[name] == "off":
            yield problem(
                "autovacuum-off",
                f"{name} is off on the server, so nothing vacuums by itself.",
                why=why,
                cure="Turn it on, as a superuser or in your provider's settings. This also vacuums at once:",
                commands=(f"ALTER SYSTEM SET {name} = on;", "SELECT pg_reload_conf();", "VACUUM outboxkit_outbox;"),
            )
    for table in tables:
        name = printable_name(table.name)
        if table.is_left_alone:
            yield warning(
                "autovacuum-off-for-table",
                f"Autovacuum is off for the table {name}.",
                why=why,
                cure="Turn it on again:",
                commands=(f"ALTER TABLE {table.name} RESET (autovacuum_enabled);",),
            )
        if table.dead >= installation.thresholds.dead_rows + 2 * table.live:
            last = "never" if table.last_vacuum is None else f"{span((now - table.last_vacuum).total_seconds())} ago"
            yield warning(
                "vacuum-behind",
                f"The table {name} has {many(table.dead, 'dead row')}, and was last vacuumed {last}.",
                why="The table grows, and what reads it walks over rows that are gone.",
                cure="If a finding says that a transaction holds vacuum back, end that first. Then vacuum it; nobody "
                "has to wait meanwhile:",
                commands=(f"VACUUM (VERBOSE, ANALYZE) {table.name};",),
            )


async def check_indexes(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Indexes that PostgreSQL does not use."""
    async with installation.database() as connection:
        rows = (await connection.execute(statements.doctor.invalid_indexes())).all()
    for row in rows:
        yield problem(
            "index-invalid",
            f"The index {printable_name(row.name)} of {printable_name(row.table)} is invalid: its creation failed.",
            why="No query uses it, so the relay or the consumer reads the whole table, or finds a duplicate too late.",
            cure="Create it anew, while others go on:",
            commands=(f"REINDEX INDEX CONCURRENTLY {row.name};",),
        )


async def check_numbers(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """The numbers of transactions and of identity columns that are left."""
    async with installation.database() as connection:
        ages = (await connection.execute(statements.doctor.oldest_ids())).one()
        columns = (await connection.execute(statements.doctor.ids_left())).all()
    limit = installation.thresholds.transaction_ids
    for kind, age in (("transaction", ages.transactions), ("multixact", ages.multixacts)):
        if age < limit:
            continue
        make = problem if age >= limit * _SOON else warning
        yield make(
            "transaction-ids",
            f"The oldest {kind} id of the database is {number(age)} {kind}s old.",
            why=f"At {number(_STOPS_AT)} the server takes no more writes. Autovacuum freezes rows after "
            f"{number(ages.freeze_after)}; something keeps it from that.",
            cure="End what holds back vacuum: old transactions, slots, prepared transactions. Then freeze, as a "
            "superuser in this database:",
            commands=("VACUUM (FREEZE, VERBOSE);",),
        )
    for column in columns:
        used = 0.0 if column.last is None else column.last / column.most
        if used < _USED:
            continue
        make = problem if used >= _USED_UP else warning
        yield make(
            "identity-used-up",
            f"{used:.0%} of the numbers of {printable_name(column.name)} are used: {number(column.last)} of "
            f"{number(column.most)}.",
            why="When they are used up, no message can be added.",
            cure="A bigint has nine million million million numbers: something has set the sequence, or its limit. "
            "Set it behind the highest number in the table:",
            commands=_restart(column.name),
        )


def _restart(table: str) -> tuple[str, ...]:
    column = "id" if table.endswith("dead_letter") else "position"
    return (
        f"SELECT max({column}) FROM {table};",  # noqa: S608 - to paste
        f"ALTER TABLE {table} ALTER COLUMN {column} SET MAXVALUE 9223372036854775807;",
        f"ALTER TABLE {table} ALTER COLUMN {column} RESTART WITH ...;",
    )
