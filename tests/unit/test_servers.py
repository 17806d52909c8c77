"""Where the tests' servers come from: the choice alone, with no server started."""

import gc
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest

from tests.servers import ServersUnavailable, containers, ports
from tests.servers.external import External
from tests.servers.ports import HIGHEST, LOWEST, free_ports, free_row
from tests.servers.postgresql import with_driver
from tests.servers.provision import POSTGRESQL, RABBITMQ, Kind, Machine, choose
from tests.servers.server import Server

SERVER = cast("Server", object())


def kind(*found: str | None) -> Kind[str]:
    """PostgreSQL, whose programs are found as given: one answer for each time that they are looked for."""
    answers = iter(found)
    return Kind(
        name="PostgreSQL",
        variable="OUTBOXKIT_TEST_DATABASE_URL",
        example="postgresql://…",
        image="postgres:16",
        package="postgresql",
        find=lambda: next(answers),
        private=lambda programs: SERVER,
        container=lambda: SERVER,
        external=lambda url: SERVER,
    )


def machine(
    environment: Mapping[str, str] | None = None,
    *,
    engine: bool = False,
    install: Callable[[str], None] | None = None,
) -> Machine:
    """A machine that has only what is given."""
    return Machine(
        environment=environment or {},
        engine_has=lambda image: engine,
        may_install=lambda: install is not None,
        install=install or (lambda package: pytest.fail("nothing may be installed here")),
    )


def test_the_environment_comes_first():
    chosen = choose(kind("/bin"), machine({"OUTBOXKIT_TEST_DATABASE_URL": "postgresql://db/"}, engine=True))
    assert chosen.where == "the server in OUTBOXKIT_TEST_DATABASE_URL"


def test_each_server_has_its_own_variable():
    given = machine({POSTGRESQL.variable: "postgresql://db/"})
    assert choose(POSTGRESQL, given).build().url == "postgresql+psycopg://db/"
    assert "container" in choose(RABBITMQ, replace(given, engine_has=lambda image: True)).where


def test_a_folder_of_programs_comes_before_docker():
    chosen = choose(POSTGRESQL, machine({POSTGRESQL.folder: "/opt/pg13/bin"}, engine=True))
    assert chosen.where == "a private instance of the programs in /opt/pg13/bin"


def test_an_empty_variable_is_no_server():
    assert "container" in choose(kind(), machine({"OUTBOXKIT_TEST_DATABASE_URL": ""}, engine=True)).where


def test_docker_comes_before_programs():
    assert choose(kind("/bin"), machine(engine=True)).where == "a container of postgres:16"


def test_programs_are_used_without_installing():
    assert choose(kind("/bin"), machine(install=pytest.fail)).where == "a private instance of the programs in /bin"


def test_what_is_missing_is_installed():
    installed: list[str] = []
    assert "/bin" in choose(kind(None, "/bin"), machine(install=installed.append)).where
    assert installed == ["postgresql"]


def test_no_way_at_all_says_what_to_install():
    with pytest.raises(ServersUnavailable) as raised:
        choose(kind(None), machine())
    for way in ("OUTBOXKIT_TEST_DATABASE_URL=postgresql://…", "postgres:16", "apt-get install postgresql"):
        assert way in str(raised.value)


def test_an_external_server_is_not_ours_to_stop():
    def connect(url: str) -> None:
        raise ConnectionRefusedError(url)

    server = External("amqp://broker/", "OUTBOXKIT_TEST_BROKER_URL", connect)
    assert not server.controllable
    for refused in (server.stop, server.kill):
        with pytest.raises(RuntimeError, match="not ours to stop"):
            refused()
    with pytest.raises(ServersUnavailable, match="OUTBOXKIT_TEST_BROKER_URL does not answer"):
        server.start()


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_no_docker_engine_is_noticed_quietly(monkeypatch: pytest.MonkeyPatch, host: str):
    monkeypatch.setenv("DOCKER_HOST", host)
    with warnings.catch_warnings(record=True) as warned:
        assert not containers.engine_has("postgres:16")
        gc.collect()
    assert not warned


def test_the_database_url_names_the_driver():
    assert with_driver("postgresql://a:b%40c@db:5432/x") == "postgresql+psycopg://a:b%40c@db:5432/x"


def test_ports_are_different_and_never_given_to_outgoing_connections():
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(LOWEST <= port < HIGHEST <= 32_768 for port in found)


def test_a_row_of_ports_leaves_out_one_whose_neighbour_is_taken(monkeypatch: pytest.MonkeyPatch):
    taken, free = free_row(3), free_row(3)
    monkeypatch.setattr(ports, "OURS", set[int]())
    monkeypatch.setattr(ports, "_candidates", lambda: iter([taken, free]))
    with socket.create_server(("", taken + 1)):
        assert free_row(3) == free


def test_no_port_is_given_twice_in_a_process_or_to_another():
    (mine,) = free_ports(1)
    asked = f"from tests.servers.ports import _take; print(_take({mine}))"
    other = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)
    assert (other.stdout, ports._take(mine)) == ("False\n", False)
