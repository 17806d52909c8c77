"""Recovery points of a request that calls outside systems: a finished step is not repeated."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from outboxkit import ids, tables
from outboxkit.codec import payloads
from outboxkit.database import transaction
from outboxkit.database.sqlalchemy_asyncio import AsyncSession, async_sessionmaker
from outboxkit.errors import ConfigurationError, EncodeError, LeaseLost
from outboxkit.http.answer import Fresh
from outboxkit.http.ledger import LENGTH, check_text, write_fenced
from outboxkit.statements import idempotency as statements

RESULTS_LIMIT = 1024 * 1024
"""Bytes of all results of a run, encoded: 1 MiB."""
_RESULTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WHY = "its session is begun and committed here"


class Steps:
    """The named steps of a run with a lease.

    Make one for each run, of the result of `begin`, once that is committed.

    Args:
        session_factory: for a short transaction after each step. No call is made inside of one.
        fresh: the result of `begin`, with a lease.

    Raises:
        ConfigurationError: the run has no lease.
    """

    def __init__(self, session_factory: async_sessionmaker[Any], fresh: Fresh) -> None:
        if fresh.lease is None:
            raise ConfigurationError("steps are for runs with a lease: begin(..., lease=timedelta(minutes=1))")
        self._sessions = session_factory
        self._fresh = fresh
        self._finished = _RESULTS.decode(fresh.steps) if fresh.steps is not None else {}
        self._named: set[str] = set()
        self._is_ended = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def finished(self) -> frozenset[str]:
        """The names of the steps whose results are recorded, by this run or an earlier one."""
        return frozenset(self._finished)

    def end(self) -> None:
        """Refuse every further step: the request has its answer."""
        self._is_ended = True

    def key(self, name: str) -> str:
        """An idempotency key for the outside call of this step: the same in every run of the request.

        If a run ended between a call and its record, the next one calls again. By this key the outside system knows
        that it has done the call. Another request has another key here, even under the same idempotency key after
        that was forgotten. So it cannot get the answer to the first.
        """
        fresh = self._fresh
        digest = fresh.fingerprint.hex()
        return ids.derive("outboxkit.step", fresh.scope, fresh.principal or "", fresh.key, digest, name)

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """The result of the step, from an earlier run that finished it, or from this call, which is then recorded.

        The record renews the lease, which must be longer than any one step. Steps may run side by side.

        Args:
            name: 1 to 255 characters; the same in every run, and for one step of a run only.
            call: the call, made once for each finished step. It sends `key(name)` to the outside system.

        Returns:
            The result as JSON gives it back, in the first run, too. A tuple is a list, a dataclass a dict, a Decimal a
            str.

        Raises:
            EncodeError: the result has no JSON form, or all results are over 1 MiB; the call was made.
            LeaseLost: the call took too long, and another run has taken over. The call was made; the other run makes
                it with the same `key`, so that an outside system that honours it does nothing twice.
            ConfigurationError: the name was used before in this run, or the run has ended.
            ValueError: the name is empty or too long.
        """
        check_text("a step's name", name, LENGTH)
        if self._is_ended:
            raise ConfigurationError(
                f"step {name!r} comes after the answer, which has ended the run, and was not called. Make it before "
                "the answer, or add a message to the outbox for it"
            )
        if name in self._named:
            raise ConfigurationError(f"step {name!r} is used twice in this run; every step needs a name of its own")
        self._named.add(name)
        if name not in self._finished:
            await self._record(name, _encode(name, await call()))
        return msgspec.json.decode(self._finished[name])

    async def _record(self, name: str, result: bytes) -> None:
        async with self._one_at_a_time:  # each record holds all of them
            finished = self._finished | {name: msgspec.Raw(result)}
            encoded = msgspec.json.encode(finished)
            if len(encoded) > RESULTS_LIMIT:
                raise EncodeError(
                    f"step {name!r} was called, but with its result this run has {len(encoded)} bytes of results; at "
                    f"most {RESULTS_LIMIT} are accepted. Return a reference to the content instead of the content"
                )
            values = {"finished": encoded, "lease": self._fresh.lease}
            session: AsyncSession
            async with self._sessions() as session, session.begin():
                try:
                    await session.run_sync(_keep, self._fresh, values)
                except LeaseLost as error:
                    raise LeaseLost(f"step {name!r} was called, and its result is lost: {error}") from error
            self._finished = finished


def _keep(session: Session, fresh: Fresh, values: dict[str, Any]) -> None:
    dialect = transaction.read_committed(session, clause=tables.idempotency)
    connection = transaction.connection_of(session, _WHY, clause=tables.idempotency)
    write_fenced(connection, fresh, statements.keep_steps(dialect), values)


def _encode(name: str, result: object) -> bytes:
    try:
        return payloads.encode_value(result, limit=sys.maxsize)  # the results are limited together
    except EncodeError as error:
        raise EncodeError(f"step {name!r} was called, but its result cannot be kept: {error}") from error
