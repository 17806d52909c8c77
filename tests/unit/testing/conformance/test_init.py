"""The suite has every case, and a good broker passes all of them."""

import inspect

import pytest

from outboxkit.testing import conformance
from outboxkit.testing.conformance import calling, publishing, receiving
from tests.unit.testing.conformance.called import CALL_FAULTS, Called
from tests.unit.testing.conformance.faults import FAULTS, Memory


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
async def test_a_good_broker_passes(case: conformance.Case):
    await case(Memory())


def test_no_case_is_left_out():
    written = {
        found
        for module in (publishing, receiving)
        for _, found in inspect.getmembers(module, inspect.iscoroutinefunction)
    }
    assert set(conformance.CASES) == written == set(FAULTS)


@pytest.mark.parametrize("case", conformance.POINT_TO_POINT, ids=lambda case: case.__name__)
async def test_a_good_destination_passes(case: conformance.PointToPointCase):
    await case(Called())


def test_no_case_of_a_destination_is_left_out():
    written = {found for _, found in inspect.getmembers(calling, inspect.iscoroutinefunction)}
    assert set(conformance.POINT_TO_POINT) == written == set(CALL_FAULTS)
