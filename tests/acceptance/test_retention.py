"""`workers/retention.py` runs beside everything else, and forgets what is old enough."""

from sqlalchemy import text

from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import take_orders
from tests.polling import eventually


def test_old_inbox_rows_are_forgotten(deployment: Deployment):
    deployment.declare_queue()
    take_orders(deployment.engine, range(1, 31))
    assert deployment.outboxkit("relay", "--drain").returncode == 0
    assert deployment.outboxkit("consume", HANDLERS, "--drain").returncode == 0
    with deployment.engine.begin() as connection:
        connection.execute(
            text("UPDATE outboxkit_inbox SET processed_at = now() - interval '8 days' WHERE ctid < '(0,21)'")
        )

    def remembered() -> int:
        with deployment.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM outboxkit_inbox")).scalar_one())

    retention = deployment.start("retention", OUTBOXKIT_INBOX_RETENTION="7d")
    assert eventually(remembered, lambda count: count < 30) == 10
    assert retention.wait_for("inbox pruned")["rows"] == 20
    assert retention.stop() == 0
