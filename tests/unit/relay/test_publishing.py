"""An application's own publisher: its errors are outages."""

import pytest

from outboxkit import BrokerUnavailable
from outboxkit.message import Message
from tests.unit.relay.conftest import Bench


@pytest.mark.parametrize("error", [OSError(), ExceptionGroup("one", [OSError()])])
async def test_an_error_that_it_raises_is_an_outage_and_no_attempt(bench: Bench, error: Exception):
    def fail(message: Message) -> None:
        if message.id == "odd":
            raise error

    bench.add("a", "odd", "b")
    before = bench.rows()
    bench.publisher.answer = fail
    async with bench.pipeline() as pipeline:
        with pytest.raises(BrokerUnavailable, match="the publisher failed: "):
            await pipeline.turn(bench.clock.now, bench.stop)
    assert bench.rows() == before
    assert bench.publisher.closed == 1
