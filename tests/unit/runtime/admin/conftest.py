"""The admin port without a provider of metrics, which would be one for all tests of the process."""

import pytest

from outboxkit.telemetry import scrape


@pytest.fixture(autouse=True)
def _no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider would be one for the whole process. Scrapes of real processes are in the acceptance tests."""
    monkeypatch.setattr(scrape, "prepare", lambda: None)
    monkeypatch.setattr(scrape, "text", lambda: b"up 1\n")
