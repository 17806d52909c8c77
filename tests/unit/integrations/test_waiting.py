"""Places for duplicates that wait."""

import pytest

from outboxkit.integrations.protocol import Places


def test_one_caller_takes_half_of_the_places_and_gives_them_back():
    places = Places(3)
    with places.taken("eve") as first, places.taken("eve") as second, places.taken("eve") as third:
        assert (first, second, third) == (True, True, False)
        with places.taken("bob") as bob, places.taken("ada") as ada:
            assert (bob, ada) == (True, False)
    with pytest.raises(ZeroDivisionError), places.taken("eve"):
        raise ZeroDivisionError
    with places.taken("eve") as first, places.taken("eve") as second, places.taken("ada") as ada:
        assert (first, second, ada) == (True, True, True)
    assert not places._waiting


def test_there_is_a_place_for_one():
    with Places(1).taken("eve") as may:
        assert may
