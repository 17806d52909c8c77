"""The suite finds what is wrong with a broker: each case has a fault that it alone is there for."""

import pytest

from outboxkit.testing.conformance import CASES, Case, calling, publishing
from tests.unit.testing.conformance.faults import FAULTS


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.__module__ == publishing.__name__], ids=lambda case: case.__name__
)
async def test_a_faulty_broker_fails(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calling, "PATIENCE", 0.05)
    with pytest.raises((AssertionError, TimeoutError)):
        await case(FAULTS[case])
