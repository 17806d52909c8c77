"""What an event has lost when it is read back: the first place that differs."""

from dataclasses import dataclass
from typing import Any

import pytest

from outboxkit.models import first_difference


@dataclass
class Line:
    price: Any


@dataclass
class Order:
    lines: Any


@pytest.mark.parametrize(
    ("given", "found", "place"),
    [
        (Order([Line(1)]), Order([Line(1)]), None),
        (Order([Line(1)]), Order([Line(2)]), "lines[...].price"),
        (Order([Line(1), Line(2)]), Order([Line(1)]), "lines"),
        (Order({"a": 1}), Order({"a": 2}), "lines[...]"),
        (Order({1: "a", "1": "b"}), Order({"1": "b"}), "lines[...]"),
        (Order({1: "a"}), Order({"1": "a"}), None),
        (Order(None), Order(0), "lines"),
        (Order(float("nan")), Order(float("nan")), None),
        (Order(1), Order(True), None),
        (Order({"price": 1}), Order(Line(1)), None),
        (Order({"price": 1}), Order(Line(2)), "lines[...]"),
    ],
)
def test_the_first_place_that_differs(given: object, found: object, place: str | None):
    assert first_difference(given, found) == place


def test_objects_that_nobody_can_compare_are_alike_if_they_are_of_one_class():
    class Plain: ...

    class Other: ...

    assert first_difference({"a": Plain()}, {"a": Plain()}, "event") is None
    assert first_difference({"a": Plain()}, {"a": Other()}, "event") is None
    assert first_difference({"a": Plain()}, {"a": "text"}, "event") == "event[...]"
