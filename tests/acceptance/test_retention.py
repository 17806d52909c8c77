"""`workers/retention.py` runs beside everything else, and forgets what is old enough."""

from sqlalchemy import text

from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import take_orders
from tests.support.polling import eventually

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
