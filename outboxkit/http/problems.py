"""Problem details (RFC 9457): answers that refuse a request, each of a type that the documentation explains."""

import json
import math
from dataclasses import dataclass
from datetime import timedelta

MEDIA_TYPE = "application/problem+json"
TYPES = "urn:outboxkit:problem:"
"""The URI of every type, up to its slug, a heading of docs/reference/problems.md. A name: no site has to exist."""


@dataclass(eq=False)
class Problem(Exception):
    """The refusal of a request. An integration answers with it instead of an error of the framework.

    Attributes:
        status: the HTTP status code.
        slug: the type's name in its URI, which never changes.
        title: the kind of the problem, the same for every problem of the type.
        detail: the fault of this request, and its cure.
        headers: names and values of the answer's headers, beside its content type.
    """

    status: int
    slug: str
    title: str
    detail: str
    headers: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.status} {self.slug}: {self.detail}"

    @property
    def type(self) -> str:
        """The URI that identifies the type."""
        return TYPES + self.slug

    def document(self) -> dict[str, object]:
        """The members of the problem document (RFC 9457, section 3.1)."""
        return {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail}

    def body(self) -> bytes:
        """The document as it is sent, in `MEDIA_TYPE`."""
        return json.dumps(self.document()).encode()


def key_missing() -> Problem:
    """400: the operation needs a key, and the request has none."""
    detail = (
        "This operation needs the header Idempotency-Key. Send a value of your own, such as a UUID, "
        "and the same one with every retry of this request."
    )
    return Problem(400, "key-missing", "Idempotency-Key is missing", detail)


def key_invalid(why: str) -> Problem:
    """400: the header is there, but holds no key."""
    detail = f'{why}. Send one key of 1 to 255 visible ASCII characters, such as Idempotency-Key: "8e03978e".'
    return Problem(400, "key-invalid", "Idempotency-Key is not valid", detail)


def key_reused() -> Problem:
    """422: the key belongs to another request of the same caller."""
    detail = (
        "This Idempotency-Key was used before, for a request with another path, query or body. "
        "Send a new key with a new request, and the unchanged request with a retry."
    )
    return Problem(422, "key-reused", "Idempotency-Key is already used", detail)


def in_progress(after: timedelta | None = None) -> Problem:
    """409: the same request is still running. Retry-After is `after` in whole seconds, at least one."""
    seconds = max(1, math.ceil(after.total_seconds())) if after is not None else 1
    detail = f"A request with this Idempotency-Key has not been answered yet. Retry in {seconds} s with the same key."
    headers = (("Retry-After", str(seconds)),)
    return Problem(409, "in-progress", "A request is outstanding for this Idempotency-Key", detail, headers)


def body_too_large(limit: int) -> Problem:
    """413: the body has more than `limit` bytes."""
    detail = f"The body of a request with an Idempotency-Key may have at most {limit} bytes here."
    return Problem(413, "body-too-large", "The body is too large", detail)


def precondition_required() -> Problem:
    """428: the operation needs If-Match (RFC 6585, section 3)."""
    detail = "This operation needs the header If-Match. Send the ETag of the version that you have read."
    return Problem(428, "precondition-required", "If-Match is missing", detail)


def precondition_invalid(why: str) -> Problem:
    """400: If-Match is there, but it is not a list of entity tags."""
    detail = f'{why}. Send the ETag as it was received, such as If-Match: "3".'
    return Problem(400, "precondition-invalid", "If-Match is not valid", detail)


def precondition_failed(detail: str) -> Problem:
    """412: the caller has seen another version of the entity."""
    return Problem(412, "precondition-failed", "The precondition failed", detail)
