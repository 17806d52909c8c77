"""Optimistic locking over HTTP: If-Match and ETag on a version column (RFC 9110, sections 8.8.3 and 13.1.1).

The version is SQLAlchemy's. A mapper with `version_id_col` raises it with each UPDATE, and raises `StaleDataError` if
another transaction was faster.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState

from outboxkit.errors import ConfigurationError
from outboxkit.http import problems
from outboxkit.http.problems import Problem

_SAFE = re.compile(r"[\x21\x23-\x7e]{1,100}")
_HASHED = "sha256:"
_TAG = r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")'
_TAGS = re.compile(rf"[ \t,]*(?:{_TAG}[ \t]*(?:,[ \t,]*|\Z))+")


def etag(entity: object) -> str:
    """The strong entity tag of an entity as it is in the database, such as `"3"`.

    A version is hashed if its text cannot stand in a tag, or has over 100 characters.

    Raises:
        ConfigurationError: its mapper has no `version_id_col`, or it has changes that are not flushed, whose version is
            not known yet.
    """
    state: Any = inspect(entity, raiseerr=False)
    if not isinstance(state, InstanceState):
        raise ConfigurationError(f"{entity!r} is not an entity of SQLAlchemy; etag accepts nothing else")
    named, column = type(entity).__name__, state.mapper.version_id_col
    if column is None:
        raise ConfigurationError(
            f'{named} has no version: give its mapper one, __mapper_args__ = {{"version_id_col": version}}'
        )
    changed = state.session is not None and state.session.is_modified(entity, include_collections=False)
    version = None if changed else getattr(entity, state.mapper.get_property_by_column(column).key)
    if version is None:
        raise ConfigurationError(
            f"{named} has changes without a version yet: flush the session before you ask for its etag"
        )
    text = version.hex() if isinstance(version, bytes) else str(version)
    if not _SAFE.fullmatch(text) or text.startswith(_HASHED):
        text = _HASHED + sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f'"{text}"'


def check_if_match(fields: Sequence[str] | str | None, entity: object | None, *, required: bool = True) -> None:
    """Refuse a request whose If-Match does not name the entity's version.

    Tags are compared strongly: a weak one never matches. `*` matches any entity. Call it before you change the entity.
    Between this check and the commit another transaction may still be faster. Then the flush raises `StaleDataError`,
    which `stale` turns into the same answer.

    Args:
        fields: the lines of the header If-Match; None and an empty list: it is missing.
        entity: the entity to change; None: it does not exist.
        required: whether the header must be there.

    Raises:
        Problem: 428, it is required and missing; 412, it names other versions; 400, it is not a list of tags.
        ConfigurationError: the entity has no version, see `etag`.
    """
    lines = [fields] if isinstance(fields, str) else list(fields or ())
    if not lines:
        if required:
            raise problems.precondition_required()
        return
    tags = _tags(",".join(lines))
    if entity is None:
        raise problems.precondition_failed("The entity that the request wants to change does not exist.")
    if tags is not None and etag(entity) not in tags:
        raise problems.precondition_failed(
            "The entity has another version than If-Match names. Read it again, and decide anew."
        )


def stale() -> Problem:
    """412 for a `StaleDataError`: another request has changed the same entity at the same time."""
    return problems.precondition_failed(
        "Another request has changed the entity meanwhile. Read it again, and decide anew."
    )


def _tags(text: str) -> set[str] | None:
    """The strong tags of a list (RFC 9110, section 5.6.1: empty elements are skipped); None for `*`."""
    if text.strip(" \t") == "*":
        return None
    if not text.strip(" \t,"):
        raise problems.precondition_invalid("If-Match is empty")
    if not _TAGS.fullmatch(text):
        raise problems.precondition_invalid("If-Match is neither * nor a list of entity tags in quotes")
    return {tag for weak, tag in re.findall(_TAG, text) if not weak}
