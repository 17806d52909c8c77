"""Statements about ordered queues that are split into shards: how many there are, and which consumers share them."""

from typing import Any

from sqlalchemy import Delete, Insert, Select, Update, bindparam, delete, select, update

from outboxkit.statements.dialects import insert_into, interval, statement_time
from outboxkit.tables import shard_member, sharding


def begin_sharding(dialect: str) -> Insert:
    """Make the row of a queue that was never split. Parameters: queue. Index: the primary key. Locks: the new row."""
    new: Insert = insert_into(dialect, sharding).values(queue=bindparam("queue"), shards=1).on_conflict_do_nothing()
    return new


def of_queue() -> Select[Any]:
    """The number of shards of a queue, and the change of it that goes on. Parameters: queue.

    Index: the primary key. Locks: none.
    """
    columns = (sharding.c.shards, sharding.c.draining, sharding.c.moved_from, sharding.c.move)
    return select(*columns).where(sharding.c.queue == bindparam("queue"))


def of_all_shards() -> Select[Any]:
    """All queues that are ordered, each as `of_queue` has it. Index: none, a row for each queue. Locks: none."""
    columns = (sharding.c.queue, sharding.c.shards, sharding.c.draining, sharding.c.moved_from, sharding.c.move)
    return select(*columns).order_by(sharding.c.queue)


def all_members(dialect: str) -> Select[str, str, int]:
    """The consumers of all ordered queues that are there, as `members`. Parameters: ago (negative).

    Index: none, a row for each process. Locks: none.
    """
    columns = (shard_member.c.queue, shard_member.c.member, shard_member.c.shards)
    return select(*columns).where(shard_member.c.seen_at >= statement_time(dialect, interval("ago")))


def lock_sharding() -> Select[Any]:
    """The same, for a consumer that may change it. Parameters: queue. Index: the primary key. Locks: the row."""
    return of_queue().with_for_update()


def change_shards() -> Update:
    """Write the number of shards, and the change of it. Parameters: of, shards, draining, moved_from, move.

    Index: the primary key. Locks: the row.
    """
    values = {
        name: bindparam(name, type_=sharding.c[name].type) for name in ("shards", "draining", "moved_from", "move")
    }
    return update(sharding).where(sharding.c.queue == bindparam("of")).values(values)


def register_member(dialect: str) -> Insert:
    """Say that this consumer is there. Parameters: queue, member, shards. Index: the primary key. Locks: the row."""
    row = {name: bindparam(name, type_=shard_member.c[name].type) for name in ("queue", "member", "shards")}
    new: Insert = insert_into(dialect, shard_member).values(row | {"seen_at": statement_time(dialect)})
    seen = {"seen_at": statement_time(dialect)}
    upsert: Insert = new.on_conflict_do_update(index_elements=list(shard_member.primary_key), set_=seen)  # type: ignore[attr-defined]
    return upsert


def delete_gone(dialect: str) -> Delete:
    """Delete the consumers of a queue that were not seen for so long. Parameters: queue, ago (negative).

    Index: the primary key. Locks: the rows that it deletes.
    """
    silent = shard_member.c.seen_at < statement_time(dialect, interval("ago"))
    return delete(shard_member).where(shard_member.c.queue == bindparam("queue"), silent)


def members() -> Select[str, int]:
    """The consumers of a queue, and the number of shards that each of them is for. Parameters: queue.

    Index: the primary key. Locks: none.
    """
    columns = (shard_member.c.member, shard_member.c.shards)
    return select(*columns).where(shard_member.c.queue == bindparam("queue")).order_by(shard_member.c.member)


def delete_member() -> Delete:
    """Delete this consumer. Parameters: queue, member. Index: the primary key. Locks: the row."""
    ours: Any = (shard_member.c.queue == bindparam("queue"), shard_member.c.member == bindparam("member"))
    return delete(shard_member).where(*ours)
