"""The files beside the workers say only what is so: settings, programs, deadlines, users."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from outboxkit.cli import app
from outboxkit.runtime import settings
from outboxkit.runtime.settings import SECRETS, Settings, variable

ROOT = Path(__file__).parents[2]
WORKERS = ROOT / "workers"
FILES = sorted(path for path in WORKERS.rglob("*") if path.is_file() and path.suffix != ".pyc")
UNITS = sorted((WORKERS / "systemd").glob("*.service"))
MANIFESTS = sorted((WORKERS / "kubernetes").glob("*.yaml"))
EXAMPLE = ROOT / "examples" / "2_two_services"
COMMANDS = set(typer.main.get_command(app).commands)


def compose() -> dict[str, Any]:
    return yaml.safe_load((WORKERS / "compose.yaml").read_text())


def compose_workers() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if "build" in service}


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((WORKERS / "kubernetes" / f"{name}.yaml").read_text())


def pod(name: str) -> dict[str, Any]:
    spec = manifest(name)["spec"]
    return spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]


PODS = [path.stem for path in MANIFESTS if path.stem != "settings"]


def unit(path: Path) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)  # Environment= may be there twice
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(path)
    return parsed


def env_file(name: str) -> dict[str, str]:
    lines = (WORKERS / "systemd" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def docker() -> list[tuple[str, str]]:
    text = (WORKERS / "Dockerfile").read_text().replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line and not line.startswith("#")]  # type: ignore[misc]


def environments() -> Iterator[Any]:
    """The settings that each deployed process gets."""
    for name, service in compose_workers().items():
        yield pytest.param(service["environment"], id=f"compose {name}")
    for name in PODS:
        (container,) = pod(name)["containers"]
        own = {entry["name"]: entry["value"] for entry in container["env"]}
        yield pytest.param(manifest("settings")["data"] | own, id=f"kubernetes {name}")
    for path in UNITS:
        shared = env_file("outboxkit.env") | env_file("consumer-billing.env")
        own = re.findall(r"^Environment=(OUTBOXKIT_\w+)=(\S+)$", path.read_text(), re.MULTILINE)
        yield pytest.param(shared | dict(own), id=path.name)


def loaded(environment: Mapping[str, str], patch: pytest.MonkeyPatch) -> Settings:
    """The settings, with the files that compose.yaml mounts in the place of every deployment's."""
    environment = {
        name: str(WORKERS / "secrets" / Path(value).name) if name.endswith("_FILE") else value
        for name, value in environment.items()
    }
    for name in [name for name in os.environ if name.startswith(settings.PREFIX)]:
        patch.delenv(name)
    for name, value in environment.items():
        patch.setenv(name, value)
    return settings.load()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(WORKERS)))
def test_every_variable_is_a_setting(path: Path):
    known = {variable(name) for name in Settings.model_fields} | {f"{variable(name)}_FILE" for name in SECRETS}
    assert set(re.findall(r"OUTBOXKIT_[A-Z_]+[A-Z]", path.read_text())) <= known


@pytest.mark.parametrize("environment", list(environments()))
def test_every_value_is_accepted(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    chosen = loaded(environment, monkeypatch)
    assert chosen.shutdown_timeout == Settings.model_fields["shutdown_timeout"].default


@pytest.mark.parametrize("environment", list(environments()))
def test_consumers_and_retention_read_one_window(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    assert environment["OUTBOXKIT_INBOX_RETENTION"] == "14d"
    assert loaded(environment, monkeypatch).inbox_retention == Settings.model_fields["inbox_retention"].default


def test_a_stop_has_more_time_than_a_worker_takes():
    longest: timedelta = Settings.model_fields["shutdown_timeout"].default
    graces = [settings.parse_duration(service["stop_grace_period"]) for service in compose_workers().values()]
    graces += [timedelta(seconds=pod(name)["terminationGracePeriodSeconds"]) for name in ("relay", "consumer")]
    graces += [timedelta(seconds=unit(path).getint("Service", "TimeoutStopSec")) for path in UNITS]
    assert len(graces) == 4 + 2 + 3
    assert min(graces) > longest


def started() -> Iterator[Any]:
    """Every command line, as a list of words."""
    for name, service in compose_workers().items():
        yield pytest.param(service["command"], id=f"compose {name}")
    for name in PODS:
        yield pytest.param(pod(name)["containers"][0]["command"], id=f"kubernetes {name}")
    for path in UNITS:
        yield pytest.param(unit(path)["Service"]["ExecStart"].split(), id=path.name)
    yield pytest.param(json.loads(dict(docker())["CMD"]), id="Dockerfile")


@pytest.mark.parametrize("command", list(started()))
def test_every_command_exists(command: list[str]):
    if command[:2] == ["sh", "-c"]:
        for part in command[2].split(" && "):
            test_every_command_exists(part.split())
        return
    program, first, *rest = (word.removeprefix("/opt/outboxkit/") for word in command)
    if program == "outboxkit":
        assert first in COMMANDS
        return
    assert program in ("python", "venv/bin/python")
    modules = [word for word in (rest if first == "-m" or first.endswith("consumer.py") else []) if "$" not in word]
    assert first == "-m" or (ROOT / first).is_file()
    assert bool(rest) == (first == "-m" or first.endswith("consumer.py"))
    for module in modules:
        assert (EXAMPLE / module.replace(".", "/")).with_suffix(".py").is_file()


@pytest.mark.parametrize("name", PODS)
def test_a_pod_may_do_no_more_than_it_needs(name: str):
    assert pod(name)["securityContext"]["runAsNonRoot"] is True
    (container,) = pod(name)["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", PODS)
def test_urls_come_from_the_secret(name: str):
    (container,) = pod(name)["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": manifest("settings")["metadata"]["name"]}}]
    files = {entry["name"]: entry["value"] for entry in container["env"] if entry["name"].endswith("_FILE")}
    (mount,) = container["volumeMounts"]
    (volume,) = pod(name)["volumes"]
    assert mount == {"name": volume["name"], "mountPath": "/run/secrets/outboxkit", "readOnly": True}
    mounted = {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]}
    assert volume["secret"]["defaultMode"] == 0o440
    assert pod(name)["securityContext"]["fsGroup"] == 10001
    needs_broker = name in ("relay", "consumer")
    assert set(files) == {"OUTBOXKIT_DATABASE_URL_FILE", *(["OUTBOXKIT_BROKER_URL_FILE"] if needs_broker else [])}
    assert set(files.values()) == mounted


def test_no_secret_is_in_an_environment():
    for entry in environments():
        (environment,) = entry.values
        assert not {variable(name) for name in SECRETS} & set(environment), entry.id
    declared = compose()["secrets"]
    for service in compose_workers().values():
        given = {Path(value).name for name, value in service["environment"].items() if name.endswith("_FILE")}
        assert given == set(service["secrets"]) == set(declared)
    assert all((WORKERS / secret["file"]).is_file() for secret in declared.values())


def test_compose_waits_for_what_a_worker_needs():
    services = compose()["services"]
    for name, service in compose_workers().items():
        for other, wanted in service["depends_on"].items():
            healthy = wanted["condition"] == "service_healthy"
            assert ("healthcheck" in services[other]) == healthy, f"{name} waits for {other}"
    assert set(services) == {"postgres", "rabbitmq", "migrate", "relay", "consumer", "retention"}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_reads_its_settings_and_runs_without_rights(path: Path):
    service = unit(path)["Service"]
    assert service["User"] == "outboxkit"
    assert service["NoNewPrivileges"] == "yes"
    read = re.findall(r"^LoadCredential=([\w-]+):/etc/outboxkit/", path.read_text(), re.MULTILINE)
    used = re.findall(r"^Environment=OUTBOXKIT_\w+_FILE=%d/([\w-]+)$", path.read_text(), re.MULTILINE)
    assert read == used
    assert "database-url" in read
    for hardening in ("LockPersonality", "ProtectKernelModules", "ProtectClock", "RestrictNamespaces"):
        assert service[hardening] == "yes"
    assert "SystemCallFilter=@system-service" in path.read_text()
    named = re.findall(r"^EnvironmentFile=/etc/outboxkit/(\S+)$", path.read_text(), re.MULTILINE)
    assert named
    assert all((WORKERS / "systemd" / name.replace("%i", "billing")).is_file() for name in named)


def test_systemd_accepts_the_units(tmp_path: Path):
    program = shutil.which("systemd-analyze")
    for path in UNITS:
        assert unit(path).sections() == ["Unit", "Service", "Install"]
        text = path.read_text().replace("/opt/outboxkit/venv/bin/python", sys.executable)
        text = text.replace("/opt/outboxkit/workers", str(WORKERS)).replace("=/opt/outboxkit\n", f"={ROOT}\n")
        copy = tmp_path / path.name.replace("@", "@billing")
        copy.write_text(text)
        if program is not None:
            checked = subprocess.run([program, "verify", copy], capture_output=True, text=True, check=False)
            assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    "file", [WORKERS / "requirements.lock", ROOT / "tests" / "requirements.lock"], ids=lambda path: path.parent.name
)
def test_a_lock_file_pins_every_dependency_by_hash_and_names_no_place(file: Path):
    text = file.read_text()
    entries = [entry for entry in text.replace("\\\n", "").splitlines() if entry and not entry.lstrip().startswith("#")]
    assert all(re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert not re.search(r"://|--(extra-)?index|--find-links", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups, extras = project["dependency-groups"], project["project"]["optional-dependencies"]
    if file.parent == WORKERS:
        wanted = [*project["project"]["dependencies"], *extras["worker"], *groups["workers"]]
    else:
        libraries = [each for extra in extras.values() for each in extra if not each.startswith("outboxkit[")]
        wanted = [*project["project"]["dependencies"], *libraries, *groups["test"], *groups["lint"]]
    names = {re.match(r"[\w.-]+", each)[0].lower().replace(".", "-") for each in wanted}  # type: ignore[index]
    assert names <= {entry.partition("==")[0] for entry in entries}
