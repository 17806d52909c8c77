"""A lock on the inbox that the consumer's role does not wait for: no message is to blame for it."""

from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from outboxkit import inbox_handler
from outboxkit.consumer import ConsumerPolicy
from outboxkit.runtime import process
from tests.integration.consumer.running_consumer import Ordered, dead_letters, processed, publish, starter
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async


@inbox_handler("Bill")
async def bill(session: AsyncSession, event: Ordered) -> None: ...


async def test_a_lock_that_the_inbox_row_does_not_get_counts_no_attempt(
    postgresql_url: str, pg_engine: Engine, broker: PlainClient
):
    url = make_url(postgresql_url).update_query_dict({"options": "-c lock_timeout=50"})
    engine = process.engine(url.render_as_string(hide_password=False), name="test", pool_size=10)
    async with starter(engine, broker)(bill, policy=ConsumerPolicy(max_attempts=1)) as consumer:
        with capture_logs() as said, pg_engine.begin() as locking:
            locking.execute(text("LOCK TABLE outboxkit_inbox IN ACCESS EXCLUSIVE MODE"))
            publish(broker, 1, "m-1")

            async def is_met() -> bool:
                is_away = any(line["event"] == "database is away, waiting" for line in said)
                return is_away or consumer.consumer.outcomes.total() > 0

            await eventually_async(is_met)
        await consumer.reaches(processed=1)
    await engine.dispose()
    assert (processed(pg_engine), dead_letters(pg_engine)) == ([("Bill", "m-1")], [])
