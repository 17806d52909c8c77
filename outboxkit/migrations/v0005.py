"""Version 5: the traceback of a dead letter, and which queue's consumer has which handlers."""

from typing import Any

import sqlalchemy as sa

_TIME = sa.DateTime(timezone=True)
_TRACEBACK = "of the handler's last failure, its end"


def upgrade(op: Any) -> None:
    """Processes of version 4 go on: they leave both empty."""
    op.add_column("outboxkit_dead_letter", sa.Column("traceback", sa.Text, comment=_TRACEBACK))
    op.create_table(
        "outboxkit_handler",
        sa.Column("handler", sa.String(255), primary_key=True),
        sa.Column("queue", sa.String(255), primary_key=True),
        sa.Column("function", sa.String(255), comment="module and name, for people who look"),
        sa.Column("last_seen", _TIME, nullable=False, server_default=sa.func.current_timestamp()),
    )


def downgrade(op: Any) -> None:
    """Back to version 4: tracebacks are dropped; a dead letter keeps its error in one line."""
    op.drop_table("outboxkit_handler")
    op.drop_column("outboxkit_dead_letter", "traceback")
