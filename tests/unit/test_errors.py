"""The tree of errors, and the two signals."""

import inspect
from datetime import timedelta

import pytest

from outboxkit import Retry, errors

CLASSES = {
    name: found for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, Exception)
}
ERRORS = {name: found for name, found in CLASSES.items() if issubclass(found, errors.OutboxkitError)}


def test_the_tree_is_the_one_that_the_module_draws():
    drawn: dict[str, tuple[int, str]] = {}
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        name = line.strip("│├└─ ").split(" ")[0]
        if name in ERRORS:
            drawn[name] = (len(line) - len(line.lstrip("│├└─ ")), name)
    assert drawn.keys() == ERRORS.keys()
    above: list[tuple[int, str]] = []
    for depth, name in drawn.values():
        above = [parent for parent in above if parent[0] < depth]
        parent = above[-1][1] if above else "Exception"
        assert ERRORS[name].__base__.__name__ == parent
        above.append((depth, name))


@pytest.mark.parametrize("after", [90, 90.0, timedelta(seconds=90)])
def test_retry_takes_seconds_or_a_timedelta(after: timedelta | float):
    assert Retry(after=after).after == timedelta(minutes=1, seconds=30)


def test_retry_without_a_delay_leaves_it_to_the_backoff():
    assert Retry().after is None
    assert Retry("the bank is closed").reason == str(Retry("the bank is closed")) == "the bank is closed"


def test_a_delay_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="Retry: after is nan; a number of seconds"):
        Retry(after=float("nan"))
