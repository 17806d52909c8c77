"""How much the tests do: every promise once, or what a night can afford, with other random numbers each time.

`make test-all` sets OUTBOXKIT_TEST_NIGHT, and OUTBOXKIT_TEST_SEED, from which all random numbers follow. The seed is
printed at the start of a run; the same one gives the same numbers again.
"""

import os
import random
from typing import TypeVar

import pytest

T = TypeVar("T")

NIGHT = bool(os.environ.get("OUTBOXKIT_TEST_NIGHT"))
SEED = int(os.environ.get("OUTBOXKIT_TEST_SEED", "20260"))


def by_night(night: T, *, else_: T) -> T:
    """The first value in a run of the night, the other one in every other run."""
    return night if NIGHT else else_


def by_day_on(database: str) -> pytest.MarkDecorator:
    """A test of `database_url` that runs on both databases by night, and on this one in every other run."""
    (other,) = {"postgresql", "sqlite"} - {database}
    return pytest.mark.parametrize(
        "database_url", [database, pytest.param(other, marks=pytest.mark.night)], indirect=True
    )


def chance(*names: object) -> random.Random:
    """Random numbers of one use, told apart by these names, that follow from the seed."""
    return random.Random(f"{SEED} {names}")
