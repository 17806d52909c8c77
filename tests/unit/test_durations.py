"""Durations, as settings and options write them."""

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.runtime.settings import parse_duration

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


@given(st.integers(1, 10_000), st.sampled_from(list(UNITS)))
def test_a_duration_is_a_number_with_its_unit(number: int, unit: str):
    assert parse_duration(f"{number}{unit}") == timedelta(seconds=number * UNITS[unit])
    assert parse_duration(parse_duration(f"{number}{unit}")) == parse_duration(f" {number}{unit} ")


@given(st.one_of(st.text(max_size=12), st.integers(), st.floats(), st.none()))
def test_anything_else_is_no_duration(text: Any):
    if re.fullmatch(r"\s*\d+(\.\d+)?(ms|s|m|h|d)\s*", str(text)):
        return
    with pytest.raises(ValueError, match="500ms, 10s, 5m, 2h or 7d"):
        parse_duration(text)
