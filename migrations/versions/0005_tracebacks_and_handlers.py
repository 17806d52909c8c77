"""Tracebacks of dead letters, and the handlers of each queue: version 5 of the tables."""

from alembic import op

from outboxkit import migrations

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(op, since=4, to=5)


def downgrade() -> None:
    migrations.downgrade(op, since=5, to=4)
