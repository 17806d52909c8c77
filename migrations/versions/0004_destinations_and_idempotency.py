"""Destinations, replies, idempotency keys and effects: version 4 of the tables."""

from alembic import op

from outboxkit import migrations

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(op, since=3, to=4)


def downgrade() -> None:
    migrations.downgrade(op, since=4, to=3)
