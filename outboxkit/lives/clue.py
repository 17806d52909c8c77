"""The clue that a search begins with, and all that it finds on its way. Pure."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outboxkit import ids
from outboxkit.lives.entries import Identity
from outboxkit.window import CLOCK_SKEW

MOST = 500
"""Messages that a search finds before it ends."""


@dataclass(slots=True)
class Clue:
    """A message id, a key or a correlation id, with the messages that it has led to.

    Attributes:
        message_id, key, correlation_id: the one that was given.
        ids: message ids that are known: the given one, and those of messages that it has caused.
        stories: correlation ids of which all messages are looked for.
        begun: the earliest moment at which one of the messages can have been made; None if nothing tells it.
    """

    message_id: str | None = None
    key: str | None = None
    correlation_id: str | None = None
    ids: set[str] = field(default_factory=set)
    stories: set[str] = field(default_factory=set)
    begun: datetime | None = None

    def __post_init__(self) -> None:
        """Follow the given id. The first message of a story has no correlation id: its own id is that of the others."""
        if (story := self.correlation_id or self.message_id) is not None:
            self.ids.add(story)
            self.stories.add(story)
            self._date(ids.time_of(story))

    @property
    def is_full(self) -> bool:
        """Whether so many messages are known that the search ends."""
        return len(self.ids) >= MOST

    def learn(self, message: Identity) -> None:
        """Follow a message that was found: its id, and the story of the message that was asked for."""
        if message.message_id is None:
            return
        self.ids.add(message.message_id)
        if message.message_id == self.message_id:
            if message.correlation_id is not None:
                self.stories.add(message.correlation_id)
            self._date(message.created_at)

    def parameters(self) -> dict[str, Any]:
        """The parameters of a search: whose ids, stories and key match. With a key, no other message matches."""
        following = set[str]() if self.key is not None else self.ids
        return {"ids": sorted(following), "stories": sorted(self.stories), "key": self.key}

    def _date(self, moment: datetime | None) -> None:
        if moment is not None and (self.begun is None or moment - CLOCK_SKEW < self.begun):
            self.begun = moment - CLOCK_SKEW
