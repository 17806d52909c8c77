"""Version 3: the inbox in partitions, with attempts and durations, and the messages that are under suspicion."""

from typing import Any

import sqlalchemy as sa

_TIME = sa.DateTime(timezone=True)
_DURATION = "of handlers that took longer than 100 ms; null: they did not"

_STEP_ASIDE = """
DO $aside$
DECLARE made text := (SELECT conname FROM pg_constraint WHERE conrelid = 'outboxkit_inbox'::regclass AND contype = 'p');
BEGIN
    ALTER TABLE outboxkit_inbox RENAME TO outboxkit_inbox_default;
    EXECUTE 'ALTER TABLE outboxkit_inbox_default RENAME CONSTRAINT ' || quote_ident(made)
        || ' TO outboxkit_inbox_default_pkey';
END $aside$
"""
_COME_BACK = """
DO $back$
BEGIN
    ALTER TABLE outboxkit_inbox_default RENAME CONSTRAINT outboxkit_inbox_default_pkey TO outboxkit_inbox_pkey;
    ALTER TABLE outboxkit_inbox_default RENAME TO outboxkit_inbox;
END $back$
"""
_INHERIT = """
DO $inherit$
DECLARE
    elder oid := 'outboxkit_inbox_default'::regclass;
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = elder);
    given record;
BEGIN
    FOR given IN
        SELECT grantee, privilege_type, is_grantable
        FROM pg_class JOIN LATERAL aclexplode(relacl) ON true
        WHERE oid = elder AND grantee <> relowner
    LOOP
        EXECUTE 'GRANT ' || given.privilege_type || ' ON outboxkit_inbox TO '
            || CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(given.grantee)) END
            || CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END;
    END LOOP;
    IF owner <> current_user THEN
        EXECUTE 'ALTER TABLE outboxkit_inbox OWNER TO ' || quote_ident(owner);
    END IF;
END $inherit$
"""


def _new_columns(comment: str | None = None) -> list[sa.Column[Any]]:
    return [
        sa.Column("attempts", sa.Integer, nullable=False, server_default="1"),
        sa.Column("duration_ms", sa.Integer, comment=comment),
    ]


def upgrade(op: Any) -> None:
    """Widen the inbox; on PostgreSQL it becomes the default partition of a new one, and no row is copied."""
    if op.get_context().dialect.name == "postgresql":
        _divide(op)
    else:
        for column in _new_columns(_DURATION):
            op.add_column("outboxkit_inbox", column)
    op.create_table(
        "outboxkit_attempt",
        sa.Column("queue", sa.String(255), primary_key=True),
        sa.Column("message_id", sa.String(255), primary_key=True),
        sa.Column(
            "starts", sa.Integer, nullable=False, server_default="0", comment="that have not ended: crashes, it may be"
        ),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0", comment="where no broker counts them"),
        sa.Column("first_failed_at", _TIME),
        sa.Column("touched_at", _TIME, nullable=False, server_default=sa.func.current_timestamp()),
    )


def _divide(op: Any) -> None:
    """The new table gets the owner and the rights of the old one."""
    op.execute(_STEP_ASIDE)
    for column in _new_columns():
        op.add_column("outboxkit_inbox_default", column)
    op.execute('ALTER TABLE outboxkit_inbox_default ALTER COLUMN message_id TYPE VARCHAR(255) COLLATE "C"')
    op.create_table(
        "outboxkit_inbox",
        sa.Column("handler", sa.String(255), primary_key=True),
        sa.Column("message_id", sa.String(255, collation="C"), primary_key=True),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("processed_at", _TIME, nullable=False, server_default=sa.func.current_timestamp()),
        *_new_columns(_DURATION),
        postgresql_partition_by="RANGE (message_id)",
    )
    op.execute(_INHERIT)
    op.execute("ALTER TABLE outboxkit_inbox ATTACH PARTITION outboxkit_inbox_default DEFAULT")
    op.create_index("outboxkit_inbox_processed", "outboxkit_inbox_default", ["processed_at"])


def downgrade(op: Any) -> None:
    """Back to version 2: one inbox again, with the rows of every partition; counted crashes are dropped."""
    op.drop_table("outboxkit_attempt")
    columns = [column.name for column in _new_columns()]
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE outboxkit_inbox DETACH PARTITION outboxkit_inbox_default")
        op.execute("INSERT INTO outboxkit_inbox_default SELECT * FROM outboxkit_inbox")
        op.drop_index("outboxkit_inbox_processed", table_name="outboxkit_inbox_default")
        op.drop_table("outboxkit_inbox")
        op.execute('ALTER TABLE outboxkit_inbox_default ALTER COLUMN message_id TYPE VARCHAR(255) COLLATE "default"')
        op.execute(_COME_BACK)
    for name in reversed(columns):
        op.drop_column("outboxkit_inbox", name)
