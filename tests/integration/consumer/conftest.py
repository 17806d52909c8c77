"""A consumer that a test starts beside itself."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.consumer.running_consumer import Start, starter
from tests.support.plain_client import PlainClient


@pytest.fixture
def start(async_pg_engine: AsyncEngine, broker: PlainClient) -> Start:
    """Starts a consumer on PostgreSQL and RabbitMQ."""
    return starter(async_pg_engine, broker)
