"""Problem details: what a refused caller reads."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from outboxkit.http import problems
from outboxkit.http.problems import Problem

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "problems.md"
EACH: dict[str, tuple[int, Callable[[], Problem]]] = {
    "key-missing": (400, problems.key_missing),
    "key-invalid": (400, lambda: problems.key_invalid("It is empty")),
    "key-reused": (422, problems.key_reused),
    "in-progress": (409, problems.in_progress),
    "body-too-large": (413, lambda: problems.body_too_large(10)),
    "precondition-required": (428, problems.precondition_required),
    "precondition-invalid": (400, lambda: problems.precondition_invalid("It is empty")),
    "precondition-failed": (412, lambda: problems.precondition_failed("It has changed")),
}


@pytest.mark.parametrize("slug", EACH)
def test_a_document_has_the_members_of_rfc_9457(slug: str):
    status, make = EACH[slug]
    problem = make()
    assert problem.slug == slug
    assert json.loads(problem.body()) == problem.document()
    assert list(problem.document()) == ["type", "title", "status", "detail"]
    assert problem.document()["status"] == problem.status == status
    assert problem.type == f"urn:outboxkit:problem:{slug}"
    assert problem.title
    assert problem.detail.endswith((".", "changed"))


@pytest.mark.parametrize("slug", EACH)
def test_its_type_is_explained_on_the_reference_page(slug: str):
    heading = re.search(rf"^## {re.escape(slug)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert heading is not None
    status, make = EACH[slug]
    assert f"**{status}**" in heading[1]
    assert make().title in heading[1]


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (None, "1"),
        (timedelta(0), "1"),
        (timedelta(seconds=-3), "1"),
        (timedelta(milliseconds=1), "1"),
        (timedelta(seconds=1), "1"),
        (timedelta(seconds=1, microseconds=1), "2"),
        (timedelta(minutes=5), "300"),
    ],
)
def test_retry_after_is_in_whole_seconds_and_never_at_once(after: timedelta | None, seconds: str):
    assert problems.in_progress(after).headers == (("Retry-After", seconds),)


def test_text_of_any_kind_is_sent_as_json():
    assert json.loads(problems.key_invalid('"\N{SNOWMAN}\ud800\n').body())["detail"].startswith('"\N{SNOWMAN}\ud800\n')
