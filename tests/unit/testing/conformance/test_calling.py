"""The suite finds what is wrong with a destination: each case has a fault that it alone is there for."""

import pytest

from outboxkit.testing.conformance import POINT_TO_POINT, PointToPointCase
from tests.unit.testing.conformance.called import CALL_FAULTS


@pytest.mark.parametrize("case", POINT_TO_POINT, ids=lambda case: case.__name__)
async def test_a_faulty_destination_fails(case: PointToPointCase):
    with pytest.raises(AssertionError):
        await case(CALL_FAULTS[case])
