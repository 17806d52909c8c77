"""Order by key, kept messages, sleeping relays: version 2 of the tables."""

from alembic import op

from outboxkit import migrations

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(op, since=1, to=2)


def downgrade() -> None:
    migrations.downgrade(op, since=2, to=1)
