"""The steps of the request that is being handled."""

import asyncio

import pytest

from outboxkit.errors import ConfigurationError
from outboxkit.http.asgi import UnrecordedSteps, bind, step, steps


async def call() -> int:
    return 7


async def test_there_are_none_outside_of_a_request():
    with pytest.raises(ConfigurationError, match="did not pass IdempotencyMiddleware"):
        await step("charge", call)


async def test_a_task_of_the_request_has_the_same():
    made = UnrecordedSteps()

    async def inner() -> UnrecordedSteps:
        return steps()

    with bind(made):
        assert await asyncio.create_task(inner()) is made
    with pytest.raises(ConfigurationError):
        steps()


async def test_without_a_key_a_step_is_made_and_its_key_is_new():
    with bind(UnrecordedSteps()):
        assert await step("charge", call) == 7
        assert steps().key("charge") != steps().key("charge")
