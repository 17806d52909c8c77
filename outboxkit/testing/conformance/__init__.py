"""The suite that every broker must pass: plain coroutines, for any test runner.

    @pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
    async def test_conformance(case):
        await case(MyBrokerUnderTest())

Each case asserts one promise of `outboxkit.brokers`, on queues of its own. A destination has no queues, but answers for
each message, as an HTTP API does. It passes `POINT_TO_POINT` instead, with a `DestinationUnderTest`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from outboxkit.testing.conformance import publishing, receiving
from outboxkit.testing.conformance.routes import BrokerUnderTest, DestinationUnderTest

__all__ = ["CASES", "POINT_TO_POINT", "BrokerUnderTest", "Case", "DestinationUnderTest"]

Case = Callable[[Any], Awaitable[None]]
_BOTH: tuple[Case, ...] = (
    publishing.a_confirmed_message_arrives_as_it_was,
    publishing.messages_of_a_key_arrive_in_order_among_others,
    publishing.a_failed_message_holds_back_the_rest_of_its_key_only,
    publishing.one_id_twice_in_a_batch_has_two_receipts,
    publishing.a_large_batch_of_large_messages_arrives_whole,
    publishing.publishers_do_not_get_into_each_others_way,
    publishing.a_connected_publisher_is_in_no_trouble,
    publishing.a_closed_publisher_can_connect_again,
)
CASES: tuple[Case, ...] = (
    *_BOTH,
    publishing.an_unroutable_message_is_no_confirmed_one,
    publishing.an_addressed_message_goes_to_its_queue_alone,
    publishing.every_queue_gets_its_copy,
    receiving.an_empty_queue_says_so,
    receiving.one_that_waits_gets_what_comes_later,
    receiving.a_released_message_comes_again_as_the_same_attempt,
    receiving.what_is_not_acked_comes_again_after_a_disconnect,
    receiving.a_retried_message_comes_later_as_the_next_attempt,
    receiving.what_is_noted_on_a_message_travels_with_its_retries,
    receiving.the_broker_counts_how_often_a_message_came_back,
    receiving.a_renewed_message_comes_again_behind_the_others,
    receiving.one_that_ceased_takes_no_more,
)
POINT_TO_POINT: tuple[Case, ...] = (*_BOTH, publishing.wherever_a_message_wants_to_go_it_comes_here)
