"""What is done about an effect, from what is known of it."""

import asyncio
from datetime import timedelta

import pytest

from outboxkit.effects.record import AMBIGUOUS, Effect, EffectRow, decide_effect, may_have_been_made
from tests.unit.shop import NOW

MINUTE = timedelta(minutes=1)


def found(state: str, result: bytes | None = None, *, lease: timedelta = MINUTE) -> EffectRow:
    return EffectRow(state, "t", result, NOW - MINUTE, NOW + lease, NOW)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("row", "known"),
    [
        (found("done", b'{"id":[1,null]}'), Effect("remembered", {"id": [1, None]})),
        (found("repeated", b'"x"'), Effect("remembered", "x")),
        (found("done", b"null"), Effect("remembered")),
        (found("skipped"), Effect("skipped")),
    ],
)
def test_what_has_ended_is_known(row: EffectRow, known: Effect, alone: bool):
    assert decide_effect(row, alone=alone) == known


def test_a_start_within_its_lease_is_a_run_for_as_long():
    assert decide_effect(found("started"), alone=False) == MINUTE


@pytest.mark.parametrize("lease", [timedelta(0), -MINUTE])
def test_a_start_whose_lease_is_over_is_unknown(lease: timedelta):
    assert decide_effect(found("started", lease=lease), alone=False) is None


def test_where_nobody_else_can_be_busy_any_start_is_unknown():
    assert decide_effect(found("started"), alone=True) is None


def caused_by(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 1),
        ConnectionResetError(),
        BrokenPipeError(),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        caused_by(RuntimeError("the provider did not answer"), TimeoutError()),
        caused_by(ValueError(), caused_by(OSError(), ConnectionResetError())),
        ArithmeticError(),
    ],
    ids=repr,
)
def test_after_these_it_may_have_been_made(error: BaseException):
    assert may_have_been_made(error, (*AMBIGUOUS, ArithmeticError))


@pytest.mark.parametrize("error", [ValueError(), ConnectionRefusedError(), ArithmeticError(), OSError()], ids=repr)
def test_after_any_other_it_was_not(error: Exception):
    error.__context__ = TimeoutError()  # what was being handled when the call began is not its cause
    assert not may_have_been_made(error, AMBIGUOUS)
