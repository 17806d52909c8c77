"""Where to, who asks, and what is not shown of it."""

import pytest

from outboxkit.brokers.http import request
from outboxkit.errors import ConfigurationError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_url_is_where_to():
    found = request.parse("https://api.example:8443/v1/charges?of=shop")
    assert (str(found.url), found.origin) == ("https://api.example:8443/v1/charges?of=shop", "https://api.example:8443")
    assert (found.authorization, found.key) == (None, None)


@pytest.mark.parametrize(
    ("userinfo", "authorization"),
    [("user:pass", "Basic dXNlcjpwYXNz"), ("user", "Basic dXNlcjo="), ("a%3Ab:%C3%A9%2F", "Basic YTpiOsOpLw==")],
)
def test_user_and_password_become_basic_authorization(userinfo: str, authorization: str):
    found = request.parse(f"https://{userinfo}@api.example/x")
    assert (found.authorization, str(found.url)) == (authorization, "https://api.example/x")


def test_nothing_secret_is_shown():
    url = "https://user:p%2Fss@hooks.example/services/T0/sw0rd?token=f1sh"
    found = request.parse(url, secret=SECRET)
    assert repr(found) == "RequestTarget(origin='https://hooks.example')"


@pytest.mark.parametrize(
    "url",
    [
        *("", "api.example", "ftp://api.example/", "http://", "http:///x", "https://sw0rd:x@", "amqp://localhost/"),
        *("http://api.example:port/", "http://api.example:99999/", "http://api.example:0/"),
        *("http://api.example/#sw0rd", "http://[::1/"),
        *("http://user:sw0rd@api.example/\n", "http://user:sw0/rd@api.example:x/", "file:///etc/passwd"),
        *(f"http://{'a' * 64}.example/", "http://a..example/"),
    ],
)
def test_what_is_no_url_is_refused(url: str):
    with pytest.raises(ConfigurationError) as raised:
        request.parse(url)
    assert "sw0" not in str(raised.value)


@pytest.mark.parametrize("authorization", ["", " x", "Bearer sw0rd\r\nx: y", "Bearer é"])
def test_an_authorization_that_is_no_header_is_refused(authorization: str):
    with pytest.raises(ConfigurationError, match="printable ASCII") as raised:
        request.parse("http://api.example/", authorization=authorization)
    assert "sw0rd" not in str(raised.value)


def test_one_authorization_is_enough():
    with pytest.raises(ConfigurationError, match="set only one"):
        request.parse("http://user:x@api.example/", authorization="Bearer x")
