"""What the tables keep: for how long, how much that is, and when the next day is dropped."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from outboxkit import schema, statements
from outboxkit.runtime import window
from outboxkit.runtime.environment import variable
from outboxkit.runtime.settings import Settings
from outboxkit.schema.partitions import DAY
from outboxkit.statements.dialects import is_server
from outboxkit.statements.partitions import INBOX, PUBLISHED


@dataclass(frozen=True, slots=True)
class Keeping:
    """The rows of a table, as retention treats them.

    Attributes:
        setting: the variable that says how long they are kept; None: there is none.
        period: its value; None: for ever, or each row says it itself.
        bytes: of the table with its indexes; None: a file does not tell.
        estimate: of its rows, as the planner knows it; None: not known.
        days: that have a partition, the first and the last one; None: there are none.
        next_drop: the moment from which the next round of retention drops the first day; None: there is none.
    """

    rows: str
    table: str
    setting: str | None
    period: timedelta | None
    bytes: int | None = None
    estimate: int | None = None
    days: tuple[datetime, datetime] | None = None
    next_drop: datetime | None = None


def read_keeping(connection: Connection, settings: Settings) -> list[Keeping]:
    """Each table that grows, and what these settings keep of it."""
    schema.check_readable(connection)
    inbox = settings.inbox_retention
    kinds: list[tuple[str, str, str | None, timedelta | None]] = [
        ("Inbox rows", "inbox", "inbox_retention", inbox),
        ("Kept messages", "published", "published_retention", settings.published_retention),
        ("Dead letters that park no key", "dead_letter", "dead_retention", settings.dead_retention),
        ("Effects, since their last use", "effect", "inbox_retention", inbox),
        ("Idempotency keys", "idempotency", None, None),
        ("Messages that wait", "outbox", None, None),
        ("Actions of operators", "audit", None, None),
    ]
    sizes = {}
    if is_server(connection.dialect.name):
        sizes = {row.name: row for row in connection.execute(statements.partitions.sizes())}
    found = []
    for rows, short, setting, period in kinds:
        table, days, drop = f"outboxkit_{short}", None, None
        size, of = sizes.get(table), {"inbox": INBOX, "published": PUBLISHED}.get(short)
        if size and of and (known := of.days_of(connection.execute(statements.partitions.attached(of)))):
            begin = datetime.min.time()
            days = (datetime.combine(known[0], begin, UTC), datetime.combine(known[-1], begin, UTC))
            skew = window.CLOCK_SKEW if short == "inbox" else timedelta(0)
            drop = None if period is None else days[0] + DAY + period + skew
        found.append(
            Keeping(
                *(rows, table, None if setting is None else variable(setting), period),
                bytes=None if size is None else size.bytes,
                estimate=None if size is None or size.estimate < 0 else size.estimate,
                days=days,
                next_drop=drop,
            )
        )
    return found
