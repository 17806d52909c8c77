"""Standard Webhooks: the signature is that of its own libraries, and secrets are checked and not shown."""

import base64
from datetime import UTC, datetime

import pytest

from outboxkit.brokers.http import request
from outboxkit.runtime import urls

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AT = datetime.fromtimestamp(1614265330, UTC)


def test_the_published_example_of_the_standard():
    body = b'{"test": 2432232314}'
    found = request.signature_headers(urls.signing_key(SECRET), id="msg_p5jXN8AQM9LWM0D4loKWxJek", body=body, now=AT)
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_nobody_can_move_a_full_stop():
    key = urls.signing_key(SECRET)
    one = request.signature_headers(key, id="a.1614265330", body=b"x", now=AT)
    other = request.signature_headers(key, id="a", body=b"1614265330.x", now=AT)
    assert one["webhook-id"] == "a%2E1614265330"
    assert one["webhook-signature"] != other["webhook-signature"]


@pytest.mark.parametrize("size", [24, 64])
def test_a_secret_of_the_standards_sizes_is_accepted(size: int):
    written = base64.b64encode(b"k" * size).decode()
    assert urls.signing_key(f"whsec_{written}") == b"k" * size


@pytest.mark.parametrize(
    "secret",
    [
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
        "whsec_MfKQ9r8GKYqrTwjU PD8ILPZIo2LaLaSw",
        "whsec_é",
        "whsec_",
        "whsec_" + base64.b64encode(b"k" * 23).decode(),
        "whsec_" + base64.b64encode(b"k" * 65).decode(),
    ],
)
def test_another_secret_is_refused_and_not_shown(secret: str):
    with pytest.raises(ValueError, match="whsec_ and 24 to 64 bytes in base64 is accepted") as raised:
        urls.signing_key(secret)
    assert secret.removeprefix("whsec_")[:20] not in str(raised.value) or secret == "whsec_"
