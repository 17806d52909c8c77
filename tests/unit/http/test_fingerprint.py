"""The fingerprint: the same for the same bytes, another one for everything else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.http.request import fingerprint

TEXTS = st.text(max_size=5) | st.sampled_from(["", "\ud800", "\N{SNOWMAN}", "/orders"])
FRAMES = st.tuples(TEXTS, TEXTS, TEXTS, st.binary(max_size=5))


def of(body: bytes = b"", **other: Any) -> bytes:
    asked = {"method": "POST", "path": "/orders/7", "query": "dry=1", "content_type": "application/json"}
    return fingerprint(**{**asked, "body": body, **other})


@given(FRAMES, FRAMES)
def test_nothing_moves_from_one_part_to_the_next(one: Any, other: Any):
    def digest(method: str, path: str, query: str, body: bytes) -> bytes:
        return of(body, method=method, path=path, query=query, content_type=None)

    assert (digest(*one) == digest(*other)) is (one == other)


@pytest.mark.parametrize(
    "change",
    [{"method": "PATCH"}, {"path": "/orders/8"}, {"query": ""}, {"content_type": "text/plain"}, {"body": b"[ ]"}],
)
def test_every_part_of_a_request_counts(change: dict[str, Any]):
    assert of(b"[]") != of(**{"body": b"[]", **change})


def test_the_media_type_counts_and_its_parameters_do_not():
    assert of(content_type="text/plain") == of(content_type="Text/Plain; charset=utf-8") != of(content_type=None)


def test_it_is_the_same_in_every_process_and_version():
    assert of(b"{}").hex() == "bca30e61f887550d9cebb80905f02fac744beb83619c2a2e12594a901d70d0aa"
