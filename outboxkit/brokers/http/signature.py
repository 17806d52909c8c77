"""Signatures of requests, as https://www.standardwebhooks.com says (version 1.0.0, the symmetric scheme). Pure."""

import base64
import binascii
import hashlib
import hmac
from datetime import datetime

from outboxkit.errors import ConfigurationError

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""Bytes of a secret."""


def signing_key(secret: str) -> bytes:
    """The bytes of a secret that is written as `whsec_` and base64.

    Raises:
        ConfigurationError: it is none. The text does not show it.
    """
    accepted = f"{PREFIX} followed by the base64 of {SHORTEST} to {LONGEST} random bytes is accepted"
    if not secret.startswith(PREFIX):
        raise ConfigurationError(f"the secret of the HTTP destination has no {PREFIX} in front; {accepted}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"the secret of the HTTP destination is no base64; {accepted}") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ConfigurationError(f"the secret of the HTTP destination has {len(key)} bytes; {accepted}")
    return key


def signed(key: bytes, *, id: str, body: bytes, now: datetime) -> dict[str, str]:  # noqa: A002 - the standard's word
    """The three headers by which the receiver knows who sent this body, and when.

    Args:
        key: the secret's bytes.
        id: the same on every attempt. A full stop in it is sent as `%2E`: id, time and body are signed with full stops
            between them, and nobody may move one.
        body: what is sent.
        now: the time of this attempt.
    """
    unambiguous, seconds = id.replace(".", "%2E"), str(int(now.timestamp()))
    content = b".".join((unambiguous.encode(), seconds.encode(), body))
    digest = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return {"webhook-id": unambiguous, "webhook-timestamp": seconds, "webhook-signature": f"v1,{digest}"}
