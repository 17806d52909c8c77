"""The comparison of two streams in the order of message ids: what was published, and what was handled. Pure."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from outboxkit.reconciliation.takers import Takers

KeptId = tuple[str, str, str | None, bool]
"""A kept message: its id, its type, the one queue that it is for, and whether it may be in flight."""
Pair = tuple[str, str]
"""A message's id, and a handler."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of a page.

    Attributes:
        count: its kept messages.
        expected: the number of messages that each handler takes.
        left: those that it has not handled, and whether each may be in flight; in the order of the ids.
        without_handler: messages of each type that no handler takes.
    """

    count: int
    expected: Counter[str]
    left: dict[Pair, bool]
    without_handler: Counter[str]


async def compare(
    messages: AsyncIterator[Sequence[KeptId]], rows: AsyncIterator[Sequence[Pair]], takers: Takers
) -> AsyncGenerator[Compared]:
    """Compare the two, page by page; of each stream, no more than a page is in memory.

    A message that is there twice, because it was published twice, counts once.

    Args:
        messages: pages of kept messages, none of them empty, in the order of the ids by their code points.
        rows: pages of inbox rows, the same.
        takers: the handlers of each type.
    """
    done: Sequence[Pair] = ()
    async for page in _with_whole_ids(messages):
        expected = {(id_, name): young for id_, type_, queue, young in page for name in takers[type_, queue]}
        counted, last = Counter(map(itemgetter(1), expected)), page[-1][0]
        while True:
            for pair in done:
                expected.pop(pair, None)
            if done and done[-1][0] > last:
                break
            try:
                done = await anext(rows)
            except StopAsyncIteration:  # anext(rows, ()) fails with the pages of some drivers
                done = ()
                break
        idle = Counter(type_ for _, type_, queue, _ in page if not takers[type_, queue])
        yield Compared(len(page), counted, expected, idle)


async def _with_whole_ids(pages: AsyncIterator[Sequence[KeptId]]) -> AsyncIterator[list[KeptId]]:
    """The same rows, in pages of which none ends between two rows of one id."""
    rows: list[KeptId] = []
    async for page in pages:
        rows += page
        last, end = rows[-1][0], len(rows) - 1
        while end and rows[end - 1][0] == last:
            end -= 1
        if end:
            yield rows[:end]
            rows = rows[end:]
    if rows:
        yield rows
