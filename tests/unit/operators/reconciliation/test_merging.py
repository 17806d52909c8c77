"""The comparison of two streams."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outboxkit.operators.reconciliation import Compared, KeptId, Pair, compare
from outboxkit.operators.reconciliation.takers import Taker, Takers

TAKERS = Takers(
    [
        Taker("H", ("q",), frozenset({"T", "U"})),
        Taker("G", ("q",), frozenset({"T"})),
        Taker("Other", ("other",), frozenset({"U"})),
    ]
)
IDS = st.sampled_from(["a", "b", "c", "d", "\u00e9", "\U0001f600", "\uffff", "z-1"])
KEPT = st.lists(
    st.tuples(
        IDS, st.sampled_from("TUV"), st.sampled_from([None, "q", "other"]), st.just(False), st.sampled_from("xy")
    ),
    max_size=25,
)
HANDLED = st.sets(st.tuples(IDS, st.sampled_from(["G", "H", "Other"])))


async def pages(rows: Sequence[Any], size: int) -> AsyncIterator[Sequence[Any]]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


async def compared(kept: Sequence[KeptId], handled: Sequence[Pair], size: int = 3) -> list[Compared]:
    return [page async for page in compare(pages(kept, size), pages(handled, size + 1), TAKERS)]


@given(KEPT, HANDLED, st.integers(1, 7))
async def test_it_says_what_sets_say(kept: list[KeptId], handled: set[Pair], size: int):
    """Whatever the pages are, and however often a message was published."""
    kept.sort(key=lambda row: (row[0].encode(), row[1], row[2] or ""))
    found = await compared(kept, sorted(handled, key=lambda pair: pair[0].encode()), size)
    expected = {(id_, taker) for id_, type_, queue, *_ in kept for taker in TAKERS[type_, queue]}
    assert sum(page.count for page in found) == len(kept)
    assert sum((page.expected for page in found), Counter()) == Counter(handler for _, handler in expected)
    left = [pair for page in found for pair in page.left]
    assert len(left) == len(set(left))
    assert set(left) == expected - handled
    ids = [id_ for id_, _ in left]
    assert ids == sorted(ids, key=str.encode)
    idle = Counter(type_ for _, type_, queue in {row[:3] for row in kept} if not TAKERS[type_, queue])
    assert sum((page.without_handler for page in found), Counter()) == idle
    payloads = {id_: {row[4] for row in kept if row[0] == id_} for id_, *_ in kept}
    ambiguous = {id_: sum(row[0] == id_ for row in kept) for id_, several in payloads.items() if len(several) > 1}
    assert {id_: count for page in found for id_, count in page.ambiguous.items()} == ambiguous


async def test_many_rows_of_others_are_passed_by():
    kept: list[KeptId] = [("b", "T", None, True, "x"), ("y", "T", None, False, "x")]
    handled = [(f"a-{n:03}", "H") for n in range(100)] + [("b", "G"), ("b", "H")]
    first, second = await compared(kept, handled)
    assert (first.left, second.left) == ({}, {("y", "G"): False, ("y", "H"): False})
    first, second = await compared(kept, [("z", "H")])
    assert first.left == {("b", "G"): True, ("b", "H"): True}
    assert second.left == {("y", "G"): False, ("y", "H"): False}
    assert await compared([], handled) == []


async def test_the_rows_of_one_message_may_be_on_two_pages():
    kept: list[KeptId] = [("a", "T", None, True, "x"), ("b", "T", None, True, "x")]
    handled = [("0", "H"), ("a", "G"), ("a", "H"), ("b", "G"), ("b", "H")]
    assert [page.left for page in await compared(kept, handled, size=1)] == [{}, {}]
