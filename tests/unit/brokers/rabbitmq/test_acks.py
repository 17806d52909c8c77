"""Acks of one moment as few frames: what they tell a broker is what was acked, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from outboxkit.brokers.rabbitmq.incoming import Acks

CHANNEL = 3
STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "ack", "ack", "nack", "flush"]), st.integers(0, 10**6)),
    max_size=120,
)


class Broker:
    """Settles as RabbitMQ does: a tag that is not unacked, also that of `multiple`, is an error."""

    def __init__(self) -> None:
        self.unacked: list[int] = []
        self.acked: set[int] = set()
        self.nacked: set[int] = set()

    def hear(self, written: bytes) -> None:
        while written:
            size, channel, method = frame.unmarshal(written)
            written = written[size:]
            assert channel == CHANNEL
            assert method.delivery_tag in self.unacked, "PRECONDITION_FAILED - unknown delivery tag"
            if isinstance(method, commands.Basic.Nack):
                assert (method.requeue, method.multiple) == (True, False)
                self.nacked.add(method.delivery_tag)
                self.unacked.remove(method.delivery_tag)
                continue
            assert isinstance(method, commands.Basic.Ack)
            meant = [t for t in self.unacked if t <= method.delivery_tag] if method.multiple else [method.delivery_tag]
            self.acked.update(meant)
            self.unacked = [tag for tag in self.unacked if tag not in meant]


@given(STEPS)
def test_the_broker_hears_of_exactly_what_was_settled(steps: list[tuple[str, int]]):
    acks, broker, held, acked, nacked, last = Acks(CHANNEL), Broker(), [], set(), set(), 0
    for step, choice in steps:
        if step == "arrive":
            last += 1
            acks.record_delivery(last, 10)
            broker.unacked.append(last)
            held.append(last)
        elif step == "flush":
            broker.hear(acks.take_frames())
            assert broker.acked == acked
        elif held:
            tag = held.pop(choice % len(held))
            if step == "ack":
                acks.ack(tag)
                acked.add(tag)
            else:
                broker.hear(acks.nack(tag))
                nacked.add(tag)
        assert broker.acked <= acked, "an ack of what nobody has acked"
        assert broker.nacked == nacked
        assert acks.unacked == len(held)
    broker.hear(acks.take_frames())
    assert (broker.acked, broker.unacked) == (acked, held)
    assert acks.take_frames() == b""


def test_what_is_settled_is_not_settled_again():
    acks = Acks(CHANNEL)
    acks.record_delivery(1, 10)
    acks.ack(1)
    acks.ack(1)
    assert acks.nack(1) == b""
    assert len(acks.take_frames()) == len(frame.marshal(commands.Basic.Ack(1), CHANNEL))
    acks.ack(1)
    assert acks.take_frames() + acks.nack(1) == b""
