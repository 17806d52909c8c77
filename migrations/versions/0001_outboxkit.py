"""The tables of outboxkit."""

from alembic import op

from outboxkit.schema import migrations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrations.upgrade(op, to=1)


def downgrade() -> None:
    migrations.downgrade(op, since=1, to=0)
