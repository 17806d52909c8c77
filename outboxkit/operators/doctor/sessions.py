"""Sessions: whether they keep their state, what they set by default, and whether the clocks agree."""

from collections.abc import AsyncGenerator
from datetime import timedelta

from outboxkit import statements
from outboxkit.database import pooler
from outboxkit.errors.wording import printable_name, span
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.durability import scope_of
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime.window import CLOCK_SKEW
from outboxkit.schema import partitions

_LOCAL = ("127.", "::1")


async def check_pooler(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Whether a session keeps its state: behind a pooler in transaction mode it does not."""
    if installation.engine is not None and not await pooler.keeps_sessions(installation.engine):
        yield problem(
            "pooler-transaction-mode",
            pooler.FOUND,
            why="Settings of a relay's session reach other clients, and notifications reach nobody. The lock by which "
            "one pruner works at a time is lost or stays. Workers refuse to start.",
            cure=pooler.CURE,
            commands=(pooler.COMMAND,),
        )


async def check_clock(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """The difference between this machine's clock and the database's."""
    async with installation.database() as connection:
        before = installation.clock()
        there = await partitions.clock(connection)
        after = installation.clock()
    skew = there - (before + (after - before) / 2)
    apart = abs(skew) - (after - before) / 2
    if apart < installation.thresholds.skew:
        return
    direction = "ahead of" if skew > timedelta(0) else "behind"
    what = f"The database's clock is {span(abs(skew).total_seconds())} {direction} this machine's."
    why = (
        "Ids of messages carry the time of the machine that made them. If it is wrong, messages are stale too early, "
        "or their inbox rows are kept for too long."
    )
    cure = "Have NTP keep both clocks, such as with chrony. This tells whether a machine's clock is kept:"
    commands = ("timedatectl show --property=NTPSynchronized",)
    if apart >= CLOCK_SKEW:
        allowed = f"{why} {span(CLOCK_SKEW.total_seconds())} are allowed."
        yield problem("clock-skew", what, why=allowed, cure=cure, commands=commands)
    else:
        yield warning("clock-skew", what, why=why, cure=cure, commands=commands)


async def check_encryption(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Whether the connection is encrypted, if it leaves this machine."""
    async with installation.database() as connection:
        facts = (await connection.execute(statements.server.facts())).one()
    if not facts.is_encrypted and is_remote(facts.client):
        yield warning(
            "database-unencrypted",
            f"The connection to the database comes from {printable_name(facts.client)} and is not encrypted.",
            why="Machines between the two can read and change messages, and may catch the password.",
            cure="Turn on TLS at the server, and ask for it in the URL:",
            commands=("?sslmode=verify-full&sslrootcert=/etc/ssl/certs/ca-certificates.crt",),
        )


def is_remote(client: str | None) -> bool:
    """Whether a client's address, as the server sees it, is on another machine. A socket has none."""
    return client is not None and not client.startswith(_LOCAL)


async def check_isolation(installation: Installation) -> AsyncGenerator[Diagnosis]:
    """Session settings that change how outboxkit's statements work: isolation, triggers, time zone, preparing."""
    async with installation.database() as connection:
        rows = {row.name: row for row in await connection.execute(statements.server.settings())}
        overrides = (await connection.execute(statements.server.overrides())).all()
    isolation = rows["default_transaction_isolation"].setting
    if isolation != "read committed":
        of_server = ("ALTER SYSTEM RESET default_transaction_isolation;", "SELECT pg_reload_conf();")
        yield _of_isolation("this session", isolation, "Find what sets it. For the server, this undoes it:", of_server)
    for row in overrides:
        name, _, value = row.pair.partition("=")
        whose, reset = scope_of(row.role, row.database)
        if name == "default_transaction_isolation" and value != "read committed":
            yield _of_isolation(whose, value, "Take the setting back:", (f"{reset} RESET {name};",))
        if name == "session_replication_role" and value == "replica":
            yield warning(
                "triggers-off",
                f"session_replication_role is replica for {whose}.",
                why="Its inserts do not fire the trigger that wakes relays. Messages wait for the next poll.",
                cure="Take the setting back:",
                commands=(f"{reset} RESET {name};",),
            )
    if rows["max_prepared_transactions"].setting != "0":
        yield note(
            "relays-poll",
            f"max_prepared_transactions is {rows['max_prepared_transactions'].setting}, so relays poll and are not "
            "woken: a transaction that has notified cannot be prepared.",
            cure="If nothing uses two-phase commit, set it to 0 and restart the server:",
            commands=("ALTER SYSTEM SET max_prepared_transactions = 0;",),
        )
    zone = str(rows["TimeZone"].reset_val)
    if zone not in ("UTC", "Etc/UTC", "GMT"):
        yield note(
            "time-zone",
            f"The time zone of new sessions is {printable_name(zone)}. outboxkit's own sessions use UTC, and stored "
            "times carry their zone, so that nothing has to be done.",
        )


def _of_isolation(whose: str, value: str, cure: str, commands: tuple[str, ...]) -> Diagnosis:
    return warning(
        "isolation",
        f"default_transaction_isolation is {value} for {printable_name(whose)}.",
        why="Relays and consumers that work side by side get serialization failures, and do the same work again and "
        "again.",
        cure=cure,
        commands=commands,
    )
