"""What is done about an effect, from what is known of it."""

import asyncio
import http.client
import socket
import ssl
from datetime import timedelta
from typing import Any

import httpcore
import pytest

from outboxkit.effects.record import CERTAIN, Effect, EffectRow, decide_effect, may_have_been_made
from tests.unit.shop import NOW

MINUTE = timedelta(minutes=1)


def found(state: str, result: bytes | None = None, *, lease: timedelta = MINUTE) -> EffectRow:
    return EffectRow(state, "t", result, NOW - MINUTE, NOW + lease, NOW)


@pytest.mark.parametrize(
    ("row", "known"),
    [
        (found("done", b'{"id":[1,null]}'), Effect("remembered", {"id": [1, None]})),
        (found("repeated", b'"x"'), Effect("remembered", "x")),
        (found("done", b"null"), Effect("remembered")),
        (found("done"), Effect("remembered")),
        (found("skipped"), Effect("skipped")),
        (found("started"), MINUTE),
        (found("started", lease=timedelta(0)), None),
    ],
)
def test_what_has_ended_is_known_and_a_start_is_a_run_for_the_rest_of_its_lease(row: EffectRow, known: object):
    assert decide_effect(row, alone=False) == known
    assert decide_effect(row, alone=True) == (None if row.state == "started" else known)


def chained(error: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    error.__context__ = cause if context is None else context
    error.__cause__ = cause
    return error


REFUSED, UNRESOLVED, LISTED = ConnectionRefusedError, socket.gaierror, ArithmeticError


@pytest.mark.parametrize(
    "error",
    [
        REFUSED(),
        UNRESOLVED(),
        LISTED(),
        chained(ValueError(), cause=chained(OSError(), cause=REFUSED())),
        chained(LISTED(), cause=TimeoutError()),  # such as a timeout of connecting, which a client tells from others
        chained(REFUSED(), context=UNRESOLVED()),
        chained(httpcore.ConnectError(), context=REFUSED()),  # raised without `from`
        chained(OSError(), cause=ExceptionGroup("of both addresses", [REFUSED(), REFUSED()])),
        ExceptionGroup("", [REFUSED(), ExceptionGroup("", [chained(OSError(), cause=LISTED())])]),
    ],
    ids=repr,
)
def test_after_these_it_was_not_made(error: BaseException):
    assert not may_have_been_made(error, (*CERTAIN, LISTED))


def circular() -> BaseException:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__, first.__context__ = second, first, second
    return first


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        OSError(),
        TimeoutError(),
        ConnectionResetError(),
        ConnectionAbortedError(),
        BrokenPipeError(),
        EOFError(),
        ssl.SSLError(),
        http.client.IncompleteRead(b""),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        chained(REFUSED(), context=TimeoutError()),  # the second of two tries
        chained(chained(ValueError(), cause=REFUSED()), cause=REFUSED(), context=TimeoutError()),
        chained(OSError(), cause=chained(REFUSED(), context=asyncio.CancelledError())),
        chained(ValueError(), context=REFUSED()),  # a second way was tried after the first one was refused
        chained(TimeoutError(), cause=asyncio.CancelledError()),
        chained(httpcore.ConnectError(), context=TimeoutError()),
        chained(httpcore.ReadError(), context=REFUSED()),
        chained(OSError(), cause=chained(REFUSED(), context=UNRESOLVED()), context=TimeoutError()),
        ExceptionGroup("", [REFUSED(), TimeoutError()]),
        ExceptionGroup("", [chained(REFUSED(), context=TimeoutError())]),
        chained(ExceptionGroup("", [REFUSED()]), context=TimeoutError()),
        BaseExceptionGroup("", [REFUSED(), asyncio.CancelledError()]),
        circular(),
    ],
    ids=repr,
)
def test_after_any_other_it_may_have_been(error: BaseException):
    assert may_have_been_made(error, (*CERTAIN, LISTED))
