"""Numbers in the documents of upcasts: floats that know all digits of their text."""

import copy
import json
from decimal import Decimal
from typing import Any

import pytest

from outboxkit.codec import payloads, upcasts
from tests.unit.operators.schemas.releases import release
from tests.unit.shop import message


@pytest.mark.parametrize("digits", ["1234567890123456789.123456789", "0.10", "1E-7", "-0.0", "123456789012345678901"])
@pytest.mark.parametrize("more", ["", ', "note": null'])
def test_numbers_keep_the_digits_that_a_foreign_producer_wrote(digits: str, more: str):
    source = (
        '@event("Paid", version=2)\n@dataclass\nclass Paid:\n    total: Decimal\n    again: Decimal\n    rest: list\n'
    )
    source += '@upcast("Paid", 1)\ndef step(document):\n    number = document["total"]\n'
    source += '    return document | {"again": Decimal(str(number)), "rest": [[number + 1, number]]}\n'
    cls = release(source).Paid
    payload = f'{{"total": {digits}{more}}}'.encode()
    paid: Any = upcasts.event_of(cls, message(type="Paid", payload=payload))
    assert (str(paid.total), paid.again) == (str(Decimal(digits)), Decimal(digits))
    assert paid.rest == [[json.loads(digits) + 1, json.loads(digits)]]


def test_a_number_of_a_document_is_a_float():
    (number,) = payloads.decode(upcasts.ANYTHING, b"[1.2345678901234567890]")
    assert (number * 2, f"{number:.2f}", round(number)) == (2.4691357802469136, "1.23", 1)
    assert str(number) == repr(copy.deepcopy(number)) == "1.2345678901234567890"
    assert payloads.encode_value({"number": copy.copy(number), "null": None}) == (
        b'{"number":1.2345678901234567890,"null":null}'
    )
