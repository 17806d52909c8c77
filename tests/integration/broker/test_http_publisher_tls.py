"""The HTTP publisher talks to whom it should and to nobody else: certificates are verified."""

import ssl
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from outboxkit import BrokerUnavailable
from tests.integration.broker.publishing import Make, made, publish, verdicts
from tests.support.http_destination import Destination, ok

SHORT = timedelta(seconds=1)
"""Enough for what a machine under load does at once, and not too long for what never happens."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that nobody knows, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


async def test_a_certificate_that_nobody_vouches_for_is_no_connection(
    make: Make, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with Destination(ok, context) as destination:
        publisher = make(url=destination.url)
        with pytest.raises(BrokerUnavailable, match=r"CERTIFICATE_VERIFY_FAILED.*self-signed"):
            await publish(publisher, made())
        await publisher.close()
        assert destination.calls == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert verdicts(await publish(publisher, made())) == ["confirmed"], "the system's store knows it now"
        with pytest.raises(BrokerUnavailable, match="IP address mismatch"):
            await publish(make(url=destination.url.replace("localhost", "127.0.0.1")), made())


async def test_a_server_that_speaks_no_tls_is_no_connection(make: Make, destination: Destination):
    publisher = make(url=destination.url.replace("http:", "https:"), timeout=SHORT)
    with pytest.raises(BrokerUnavailable, match=r"cannot connect to https://localhost:\d+: time was up after 0.5 s"):
        await publish(publisher, made())
    assert destination.calls == []
