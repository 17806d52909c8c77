"""The floor against a model of the table: it never passes a row that is ready, or that may yet become visible."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outboxkit.relay.floor import Floor
from tests.support.night import by_night


class Table(RuleBasedStateMachine):
    """Writers take positions early and commit late or never, other relays hold and settle rows, we claim and look."""

    def __init__(self) -> None:
        super().__init__()
        self.floor = Floor()
        self.next_position, self.next_writer = 1, 1
        self.writers: dict[str, list[int]] = {}
        self.ready: set[int] = set()

    @rule(draw=st.data(), positions=st.integers(1, 3))
    def insert(self, draw: st.DataObject, positions: int) -> None:
        """By a transaction that is open, or by a new one."""
        writer = draw.draw(st.sampled_from([f"3/{self.next_writer}", *sorted(self.writers)]))
        self.next_writer += 1
        self.writers.setdefault(writer, []).extend(range(self.next_position, self.next_position + positions))
        self.next_position += positions

    @precondition(lambda self: self.writers)
    @rule(draw=st.data(), commits=st.booleans())
    def end(self, draw: st.DataObject, commits: bool) -> None:
        positions = self.writers.pop(draw.draw(st.sampled_from(sorted(self.writers))))
        self.ready |= set(positions) if commits else set()

    @precondition(lambda self: self.ready)
    @rule(draw=st.data(), swept=st.booleans())
    def claim(self, draw: st.DataObject, swept: bool) -> None:
        """The lowest rows that nobody else holds."""
        held = draw.draw(st.sets(st.sampled_from(sorted(self.ready)), max_size=2))
        above = 0 if swept else self.floor.value
        claimed = {position for position in self.ready - held if position > above}
        self.floor.saw(claimed)
        if draw.draw(st.booleans()):
            self.ready -= claimed

    @precondition(lambda self: self.ready)
    @rule(draw=st.data())
    def settle(self, draw: st.DataObject) -> None:
        """By another relay: published, buried or put off, a row is no longer ready."""
        self.ready -= draw.draw(st.sets(st.sampled_from(sorted(self.ready)), min_size=1))

    @rule(draw=st.data())
    def look(self, draw: st.DataObject) -> None:
        """A look takes two statements, and transactions end in between."""
        read = list(self.writers)
        if self.writers and draw.draw(st.booleans()):
            self.end(draw, commits=True)
        before = self.floor.value
        self.floor.rise(read, min((found for found in self.ready if found > before), default=None))
        assert self.floor.value >= before

    @invariant()
    def nothing_is_or_will_be_below(self) -> None:
        coming = [position for positions in self.writers.values() for position in positions]
        assert self.floor.value < min([*self.ready, *coming, self.next_position])


TestFloor = Table.TestCase
TestFloor.settings = settings(max_examples=by_night(1000, else_=60), stateful_step_count=60, deadline=None)


def test_it_rises_behind_the_relay_when_nobody_writes():
    floor = Floor()
    for last in (100, 200, 300, 400):
        floor.saw([last - 1, last])
        floor.rise([], None)
    assert floor.value == 200


def test_it_stays_below_a_row_that_somebody_else_holds():
    floor = Floor()
    for _ in range(4):
        floor.saw([100])
        floor.rise([], 40)
    assert floor.value == 39


def test_it_waits_for_every_transaction_that_was_writing_and_for_no_other():
    floor = Floor()
    floor.saw([100])
    floor.rise(["3/7", "4/1"], None)
    for writers in (["3/7", "5/1"], ["3/7", "5/2"]):
        floor.rise(writers, None)
    assert floor.value == 0
    floor.rise(["5/3"], None)
    floor.rise(["5/3"], None)
    assert floor.value == 100
