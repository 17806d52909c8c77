"""The pytest plugin on a machine without servers: containers are started, or the test is told what it needs."""

import sys
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import pytest

from outboxkit.testing import plugin


@pytest.mark.parametrize(
    ("fixture", "library", "kind", "url"),
    [
        (
            "outboxkit_server",
            "postgres",
            "PostgresContainer",
            "postgresql+psycopg://test:test@docker.example:49153/test",
        ),
        ("outboxkit_broker", "rabbitmq", "RabbitMqContainer", "amqp://guest:guest@docker.example:49153/"),
    ],
)
def test_without_a_url_a_container_is_the_server(
    fixture: str, library: str, kind: str, url: str, monkeypatch: pytest.MonkeyPatch
):
    """The library's own class gives the URL; Docker alone is left out. Its import warns, which is an error here."""
    for name in [name for name in sys.modules if name.startswith("testcontainers.") and name.endswith(library)]:
        monkeypatch.delitem(sys.modules, name)
    container: Any = getattr(plugin._containers(library, ""), kind)
    states: list[str] = []

    def start(self: Any) -> Any:
        states.append("started")
        self._container = object()
        return self

    monkeypatch.setattr("testcontainers.core.container.DockerClient", lambda **_: None)
    monkeypatch.setattr(container, "start", start)
    monkeypatch.setattr(container, "stop", lambda self, **_: states.append("stopped"))
    monkeypatch.setattr(container, "get_container_host_ip", lambda self: "docker.example")
    monkeypatch.setattr(container, "get_exposed_port", lambda self, port: 49153)
    with contextmanager(unwrap(getattr(plugin, fixture)))() as given:
        assert (given, states) == (url, ["started"])
    assert states == ["started", "stopped"]


def test_without_a_url_and_without_containers_the_test_says_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    for module in ("testcontainers.community.postgres", "testcontainers.postgres"):
        monkeypatch.setitem(sys.modules, module, None)
    wanted = r"no server: set OUTBOXKIT_TEST_DATABASE_URL, or pip install testcontainers\[postgres\] and have Docker"
    with pytest.raises(pytest.fail.Exception, match=wanted):
        next(unwrap(plugin.outboxkit_server)())
