"""The suite has every case; a good broker passes all; each case finds a fault that it alone is there for."""

import inspect

import pytest

from outboxkit.testing import conformance
from outboxkit.testing.conformance import Case, publishing, receiving, routes
from outboxkit.testing.conformance.routes import Route
from tests.unit.testing.conformance.faults import CALL_FAULTS, FAULTS, Called, Memory


def named(case: object) -> str:
    return getattr(case, "__name__", "")


@pytest.mark.parametrize("case", conformance.CASES, ids=named)
async def test_a_good_broker_passes(case: Case):
    await case(Memory())


@pytest.mark.parametrize("case", conformance.POINT_TO_POINT, ids=named)
async def test_a_good_destination_passes(case: Case):
    await case(Called())


@pytest.mark.parametrize("case", conformance.CASES, ids=named)
async def test_a_faulty_broker_fails(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "PATIENCE", 0.05)
    with pytest.raises((AssertionError, TimeoutError)):
        await case(FAULTS[case])


@pytest.mark.parametrize("case", conformance.POINT_TO_POINT, ids=named)
async def test_a_faulty_destination_fails(case: Case):
    with pytest.raises(AssertionError):
        await case(CALL_FAULTS[case])


def test_no_case_is_left_out():
    written = {
        found
        for module in (publishing, receiving)
        for _, found in inspect.getmembers(module, inspect.iscoroutinefunction)
    }
    assert {*conformance.CASES, *conformance.POINT_TO_POINT} == written
    assert (set(conformance.CASES), set(conformance.POINT_TO_POINT)) == (set(FAULTS), set(CALL_FAULTS))


async def test_what_does_not_arrive_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "PATIENCE", 0.01)
    async with Route(Memory()) as route:
        with pytest.raises(TimeoutError):
            await route.next()
