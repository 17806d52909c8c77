"""The inbox in partitions, messages under suspicion: version 3 of the tables."""

from alembic import op

from outboxkit import migrations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(op, since=2, to=3)


def downgrade() -> None:
    migrations.downgrade(op, since=3, to=2)
