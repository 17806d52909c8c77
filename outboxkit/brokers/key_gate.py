"""Order by key within a batch: once a message has failed, later messages of its key are not sent."""

from outboxkit.brokers import Receipt, Verdict
from outboxkit.message import Message


class KeyGate:
    """The keys of one batch of which a message has failed. Messages without a key always pass."""

    def __init__(self) -> None:
        self._failed_at: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._failed_at)

    def fail(self, index: int, message: Message) -> None:
        """Note that this message has failed: those of its key with a higher index in the batch do not pass."""
        if message.key is not None:
            self._failed_at[message.key] = min(index, self._failed_at.get(message.key, index))

    def refuse(self, index: int, message: Message) -> Receipt | None:
        """The receipt of a message that must not be sent, behind a failed one of its key; None: it may be sent."""
        if message.key is None or index <= self._failed_at.get(message.key, index):
            return None
        return Receipt(Verdict.NOT_SENT, f"an earlier message of key {message.key!r} has failed")
