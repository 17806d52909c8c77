"""Histories of requests, compared with a small model of the ledger: hypothesis chooses what happens."""

import json
import secrets
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session

from outboxkit import tables
from outboxkit.errors import LeaseLost
from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, InProgress, Judgement, Mismatch, Replay, Response
from tests.support.ledger_requests import ASKED, change, database_time
from tests.support.night import by_night

Place = tuple[str, str | None]
HOUR = timedelta(hours=1)
KEYS, PAYLOADS, PRINCIPALS = st.sampled_from(["a", "b"]), st.sampled_from([b"1", b"2"]), st.sampled_from(["x", None])


@dataclass
class Known:
    """What the model knows of a key."""

    payload: bytes
    token: str
    answer: Response | None = None
    leased: bool = True
    steps: set[str] = field(default_factory=set)


class Ledger(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = create_engine(f"sqlite:///{Path(self.folder.name) / 'ledger.db'}")
        event.listen(self.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
        tables.idempotency.create(self.engine)
        self.known: dict[Place, Known] = {}
        self.expired: dict[Place, Known] = {}
        self.runs: list[tuple[Place, Fresh]] = []

    def expected(self, place: Place, payload: bytes) -> type[Judgement]:
        found = self.known.get(place)
        if found is None:
            return Fresh
        if found.payload != payload:
            return Mismatch
        if found.answer is not None:
            return Replay
        return InProgress if found.leased else Fresh

    def begin(self, session: Session, place: Place, payload: bytes, lease: timedelta | None) -> Judgement:
        asked = ASKED | {"key": place[0], "principal": place[1], "fingerprint": payload * 32}
        outcome = ledger.begin(session, **asked, lease=lease)
        assert type(outcome) is self.expected(place, payload)
        if isinstance(outcome, Replay):
            assert outcome.response == self.known[place].answer
        if isinstance(outcome, Fresh):
            assert set(json.loads(outcome.steps or "{}")) == (self.known[place].steps if place in self.known else set())
        return outcome

    @rule(key=KEYS, principal=PRINCIPALS, payload=PAYLOADS, commits=st.booleans())
    def in_one_transaction(self, key: str, principal: str | None, payload: bytes, commits: bool) -> None:
        place = (key, principal)
        with Session(self.engine) as session:
            outcome = self.begin(session, place, payload, None)
            if isinstance(outcome, Fresh):
                answer = Response(200, (), secrets.token_bytes(4))
                ledger.complete(session, outcome, answer)
                if commits:
                    session.commit()
                    self.known[place] = Known(payload, outcome.token, answer)
                    self.expired.pop(place, None)

    @rule(key=KEYS, principal=PRINCIPALS, payload=PAYLOADS)
    def with_a_lease(self, key: str, principal: str | None, payload: bytes) -> None:
        place = (key, principal)
        with Session(self.engine) as session, session.begin():
            outcome = self.begin(session, place, payload, HOUR)
        if isinstance(outcome, Fresh):
            self.known[place] = Known(payload, outcome.token, steps=set(json.loads(outcome.steps or "{}")))
            self.expired.pop(place, None)
            self.runs.append((place, outcome))

    @rule(number=st.integers(0, 5), what=st.sampled_from(["complete", "release", "forget"]))
    def a_run_writes(self, number: int, what: str) -> None:
        if not self.runs:
            return
        place, fresh = self.runs[number % len(self.runs)]
        found = self.known.get(place) or self.expired.get(place)
        may = found is not None and found.token == fresh.token and found.answer is None
        answer = Response(201, (("x", "y"),), secrets.token_bytes(4))
        try:
            with Session(self.engine) as session, session.begin():
                if what == "complete":
                    ledger.complete(session, fresh, answer)
                else:
                    ledger.release(session, fresh, forget=what == "forget")
        except LeaseLost:
            assert not may
            return
        assert may
        assert found is not None
        if what == "complete":
            found.answer = answer
        elif what == "release":
            found.leased = False
        else:
            self.known.pop(place, None)
            self.expired.pop(place, None)

    @rule()
    def every_lease_ends(self) -> None:
        with Session(self.engine) as session:
            waiting = session.execute(
                select(tables.idempotency).where(tables.idempotency.c.state == "processing")
            ).all()
        if waiting:
            change(self.engine, locked_until=database_time(self.engine), steps=b'{"one":1}')
        for found in self.known.values():
            if found.answer is None:
                found.leased, found.steps = False, {"one"}

    @rule()
    def everything_expires(self) -> None:
        """A run may still write, as long as nobody has the key: what it did must not be lost."""
        change(self.engine, expires_at=database_time(self.engine))
        self.expired |= self.known
        self.known.clear()

    @invariant()
    def what_was_answered_stays(self) -> None:
        with self.engine.connect() as connection:
            alive = tables.idempotency.c.expires_at > database_time(self.engine)
            rows = connection.execute(select(tables.idempotency).where(alive)).all()
        found = {(row.key, row.principal or None): row for row in rows}
        assert found.keys() == self.known.keys()
        for place, known in self.known.items():
            assert (found[place].state == "done") is (known.answer is not None)
            assert found[place].response_body == (known.answer.body if known.answer is not None else None)

    def teardown(self) -> None:
        self.engine.dispose()
        self.folder.cleanup()


def test_every_history_is_the_models() -> None:
    case = Ledger.TestCase
    case.settings = settings(max_examples=by_night(200, else_=20), stateful_step_count=25, deadline=None)
    case().runTest()
