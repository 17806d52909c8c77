"""`workers/retention.py` runs beside everything else, and forgets what is old enough."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from outboxkit.statements.partitions import INBOX, first_id
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import take_orders
from tests.support.polling import eventually

AGE_20_OF_30 = """
WITH numbered AS (SELECT message_id, row_number() OVER () AS number FROM outboxkit_inbox)
UPDATE outboxkit_inbox inbox
SET processed_at = now() - interval '9 days',
    message_id = CASE WHEN number > 10 THEN 'order-' || number ELSE :old_id || '-7000-8000-' || number END
FROM numbered WHERE inbox.message_id = numbered.message_id AND number <= 20
"""


def test_old_inbox_rows_are_forgotten(deployment: Deployment):
    """Ten as foreign ids, one by one; ten with their day, whole."""
    deployment.declare_queue()
    take_orders(deployment.engine, range(1, 31))
    assert deployment.outboxkit("relay", "--drain").returncode == 0
    assert deployment.outboxkit("consume", HANDLERS, "--drain").returncode == 0
    old = datetime.now(UTC).date() - timedelta(days=9)
    begin, end = first_id(old), first_id(old + timedelta(days=1))
    with deployment.engine.begin() as connection:
        name = INBOX.partition_of(old)
        bounds = f"FOR VALUES FROM ('{begin}') TO ('{end}')"
        connection.execute(text(f"CREATE TABLE {name} PARTITION OF outboxkit_inbox {bounds}"))
        connection.execute(text(AGE_20_OF_30), {"old_id": begin})

    def remembered() -> int:
        with deployment.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM outboxkit_inbox")).scalar_one())

    retention = deployment.start("retention", OUTBOXKIT_INBOX_RETENTION="7d")
    assert eventually(remembered, lambda count: count <= 10) == 10
    pruned = retention.wait_for("inbox pruned")
    assert (pruned["rows"], pruned["days_dropped"]) == (10, [str(old)])
    assert retention.stop() == 0


MAKE_AN_OLD_DAY = """
DO $$ DECLARE today date := (now() AT TIME ZONE 'UTC')::date; BEGIN
    EXECUTE format(
        'CREATE TABLE outboxkit_published_%s PARTITION OF outboxkit_published FOR VALUES FROM (%L) TO (%L)',
        to_char(today - 9, 'YYYYMMDD'), (today - 9) || ' UTC', (today - 8) || ' UTC'
    );
END $$
"""


def test_published_messages_are_kept_dropped_by_days_and_replayed(deployment: Deployment):
    """The relay keeps what it has published while partitions are made, moved to and dropped below it."""
    deployment.declare_queue()
    keep = {"OUTBOXKIT_PUBLISHED_RETENTION": "2d"}
    relay = deployment.relay(**keep)
    take_orders(deployment.engine, range(1, 31))
    deployment.wait_for_empty_outbox()
    retention = deployment.start_often_pruning(**keep)
    take_orders(deployment.engine, range(31, 61))
    deployment.wait_for_empty_outbox()

    def kept() -> dict[str, int]:
        counted = "SELECT tableoid::regclass::text, count(*) FROM outboxkit_published GROUP BY 1"
        with deployment.engine.connect() as connection:
            return dict(connection.execute(text(counted)).all())

    def in_days(found: dict[str, int]) -> bool:
        return sum(found.values()) == 60 and "outboxkit_published_default" not in found

    eventually(kept, in_days)
    with deployment.engine.begin() as connection:
        connection.execute(text(MAKE_AN_OLD_DAY))
        connection.execute(
            text("UPDATE outboxkit_published SET published_at = published_at - interval '9 days' WHERE position <= 30")
        )
    eventually(kept, lambda found: sum(found.values()) == 30)

    def dropped() -> list[str]:
        return [day for line in retention.entries("published pruned") for day in line["days_dropped"]]

    assert len(eventually(dropped, bool)) == 1, "they went with their day"
    assert all(line["rows"] == 0 for line in retention.entries("published pruned"))
    assert deployment.outboxkit("republish", "--to-queue", deployment.broker.queue, "--yes").returncode == 0
    assert deployment.broker.depth() == 90
    assert deployment.outboxkit("consume", HANDLERS, "--drain").stdout == "duplicate 30, processed 60\n"
    assert set(deployment.effects().values()) == {1}
    assert [retention.stop(), relay.stop()] == [0, 0]
