"""How a group is written: windows, room, and what stops it; against a wire that is a queue."""

import asyncio
import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any

import aiormq
import pytest
from aiormq.abc import ChannelFrame

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq import confirm_channel
from outboxkit.brokers.rabbitmq.confirm_channel import ConfirmChannel
from outboxkit.brokers.rabbitmq.plan import PublishPlan, SerializedRoutes
from tests.unit.brokers.rabbitmq.written import Wire
from tests.unit.shop import message


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def opened(wire: Wire) -> ConfirmChannel:
    return ConfirmChannel(wire, exchange="shop-events", app_id="shop")  # type: ignore[arg-type]


def batch_of(*sizes: int, **more: Any) -> PublishPlan:
    messages = [message(id=str(number), payload=b"x" * size, **more) for number, size in enumerate(sizes)]
    return PublishPlan(messages, SerializedRoutes(lambda: 0.0))


async def settled(task: asyncio.Task[Any]) -> None:
    """Let the task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()


async def test_a_group_is_one_buffer_and_ends_with_the_last_answer(wire: Wire, opened: ConfirmChannel):
    batch = batch_of(1, 2, 3)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    assert await wire.next_ids() == ["0", "1", "2"]
    opened.tracker.ack(2, multiple=True)
    await settled(sending)
    opened.tracker.ack(3, multiple=False)
    assert await sending == []
    assert batch.receipts == [CONFIRMED] * 3
    assert wire.write_queue.empty()


async def test_the_next_window_waits_until_the_socket_has_taken_the_last(
    wire: Wire, opened: ConfirmChannel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirm_channel, "WINDOW_MESSAGES", 2)
    batch = batch_of(1, 1, 1)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    await settled(sending)
    assert wire.write_queue.qsize() == 1
    assert await wire.next_ids() == ["0", "1"]
    assert await wire.next_ids() == ["2"]
    opened.tracker.ack(3, multiple=True)
    assert await sending == []


@pytest.mark.parametrize("limit", [("UNCONFIRMED_MESSAGES", 2), ("UNCONFIRMED_BYTES", 200_000)])
async def test_no_more_than_so_much_is_on_its_way(
    wire: Wire, opened: ConfirmChannel, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
):
    monkeypatch.setattr(confirm_channel, *limit)
    monkeypatch.setattr(confirm_channel, "WINDOW_MESSAGES", 1)
    batch = batch_of(*[100_000] * 5)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    for tag in range(1, 4):
        assert await wire.next_ids() == [str(tag - 1)]
        if tag >= 2:
            await settled(sending)
            assert wire.write_queue.empty(), "too much is on its way"
            opened.tracker.ack(tag - 1, multiple=False)
    for id_ in ("3", "4"):
        opened.tracker.ack(5, multiple=True)
        assert await wire.next_ids() == [id_]
    opened.tracker.ack(5, multiple=True)
    assert await sending == []


async def test_a_message_larger_than_all_limits_goes_alone(wire: Wire, opened: ConfirmChannel):
    batch = batch_of(5_000_000, 10)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    assert await wire.next_ids() == ["0"]
    await settled(sending)
    opened.tracker.ack(1, multiple=False)
    assert await wire.next_ids() == ["1"]
    opened.tracker.ack(2, multiple=False)
    assert await sending == []


async def test_nothing_is_written_while_the_broker_blocks(wire: Wire, opened: ConfirmChannel):
    opened.tracker.blocked("low on disk")
    batch = batch_of(1)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    await settled(sending)
    assert wire.write_queue.empty()
    opened.tracker.blocked(None)
    assert await wire.next_ids() == ["0"]
    opened.tracker.ack(1, multiple=False)
    assert await sending == []


async def test_a_lost_channel_ends_it_and_says_what_has_not_left(
    wire: Wire, opened: ConfirmChannel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirm_channel, "WINDOW_MESSAGES", 2)
    batch = batch_of(1, 1, 1, 1)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    await settled(sending)
    opened.tracker.closed(0, "the socket is gone", connection_too=True)
    assert await sending == [2, 3]
    assert opened.tracker.take_unanswered() == [0, 1]
    assert not opened.is_open


async def test_what_cannot_be_written_is_rejected_and_takes_no_tag(wire: Wire, opened: ConfirmChannel):
    messages = [message(id="0", headers={"a": object()}, key="k"), message(id="1", key="k"), message(id="2")]
    serialized = SerializedRoutes(lambda: 0.0)
    serialized.record_confirm(messages[0].routing_key)
    batch = PublishPlan(messages, serialized)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    assert await wire.next_ids() == ["2"]
    opened.tracker.ack(1, multiple=False)
    assert await sending == []
    assert [receipt and receipt.verdict for receipt in batch.receipts] == ["rejected", "not sent", "confirmed"]


async def test_what_is_returned_between_two_windows_holds_up_its_key_in_the_next(
    wire: Wire, opened: ConfirmChannel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirm_channel, "WINDOW_MESSAGES", 1)
    messages = [message(id="0", key="k"), message(id="1", key="k")]
    serialized = SerializedRoutes(lambda: 0.0)
    serialized.record_confirm(messages[0].routing_key)
    batch = PublishPlan(messages, serialized)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    await settled(sending)
    opened.tracker.returned("0", "NO_ROUTE")
    assert await wire.next_ids() == ["0"]
    await asyncio.wait((sending,), timeout=5)
    assert wire.write_queue.empty()
    assert [receipt and receipt.verdict for receipt in batch.receipts] == ["unroutable", "not sent"]


async def test_a_cancelled_wait_for_the_writer_counts_no_tag(wire: Wire, opened: ConfirmChannel):
    while not wire.write_queue.full():
        wire.write_queue.put_nowait(ChannelFrame(payload=b"", should_close=False))
    batch = batch_of(1)
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    await settled(sending)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert opened.tracker.unconfirmed == 0


def test_the_client_library_still_has_what_is_built_upon():
    """If this fails after an upgrade, docs/decisions/0013-one-buffer-for-a-batch.md says what to look at."""
    assert [each.name for each in dataclasses.fields(ChannelFrame)] == ["payload", "should_close", "drain_future"]
    source = inspect.getsource(aiormq.channel.Channel.__init__)
    assert "self.write_queue = connector.write_queue" in source
    assert "self.number: int = number" in source
    writer = inspect.getsource(aiormq.Connection._Connection__writer)  # type: ignore[attr-defined]
    assert "writer.write(channel_frame.payload)" in writer
    assert writer.index("await writer.drain()") < writer.index("channel_frame.drain()")


async def test_a_message_on_which_the_encoder_stumbles_stops_no_other(wire: Wire, opened: ConfirmChannel):
    batch, write = batch_of(1, 2, 3), opened.encoder.write

    def stumbling(written: Any, pieces: list[bytes]) -> int:
        if written.id == "1":
            raise ZeroDivisionError("SECRET")
        return write(written, pieces)

    opened.encoder = SimpleNamespace(write=stumbling)  # type: ignore[assignment]
    sending = asyncio.create_task(opened.send(batch, batch.next_group()))
    assert await wire.next_ids() == ["0", "2"]
    opened.tracker.ack(2, multiple=True)
    await sending
    refused = Receipt(Verdict.REJECTED, "cannot be written as AMQP: ZeroDivisionError")
    assert batch.receipts == [CONFIRMED, refused, CONFIRMED]


async def test_what_waited_for_its_turn_was_not_sent_although_the_channel_was_closed_meanwhile(
    wire: Wire, opened: ConfirmChannel
):
    publishes = [asyncio.create_task(opened.publish_one("one id", b"frames", timeout=5)) for _ in range(4)]
    await wire.next_buffer()
    await settled(publishes[0])
    opened.tracker.nack(1, multiple=False)
    await opened.finish(timeout=5)
    opened.tracker.closed(0, "closed", connection_too=True)
    receipts = await asyncio.gather(*publishes)
    assert [each.verdict for each in receipts] == [Verdict.POSTPONED] + [Verdict.NOT_SENT] * 3


async def test_a_confirm_behind_its_giving_up_is_left_alone():
    answers = confirm_channel.Answers()
    index, receipt = answers.add()
    answers.give_up(Receipt(Verdict.UNKNOWN))
    answers[index] = CONFIRMED
    assert await receipt == Receipt(Verdict.UNKNOWN)
