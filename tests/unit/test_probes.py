"""The files beside the workers ask the admin port where it listens."""

import pytest

from outboxkit.runtime.admin.pages import ASK_SECONDS
from tests.unit.test_deployment import compose_workers, manifest, pod


@pytest.mark.parametrize("name", ["relay", "consumer"])
def test_a_pod_is_probed_where_its_admin_port_listens(name: str):
    (container,) = pod(name)["containers"]
    own = {entry["name"]: entry["value"] for entry in container["env"]}
    (port,) = container["ports"]
    assert own["OUTBOXKIT_ADMIN_PORT"] == f"0.0.0.0:{port['containerPort']}"
    probes = {kind: container[f"{kind}Probe"] for kind in ("liveness", "readiness")}
    assert {kind: probe["httpGet"] for kind, probe in probes.items()} == {
        "liveness": {"path": "/livez", "port": port["name"]},
        "readiness": {"path": "/readyz", "port": port["name"]},
    }
    assert min(probe["timeoutSeconds"] for probe in probes.values()) > ASK_SECONDS
    assert pod(name)["enableServiceLinks"] is False
    told = manifest(name)["spec"]["template"]["metadata"]["annotations"]
    assert told == {"prometheus.io/scrape": "true", "prometheus.io/port": str(port["containerPort"])}


def test_containers_are_asked_whether_they_are_live():
    for name in ("relay", "consumer", "retention"):
        service = compose_workers()[name]
        (program, flag, code) = service["healthcheck"]["test"][1:]
        port = service["environment"]["OUTBOXKIT_ADMIN_PORT"].rpartition(":")[2]
        assert (program, flag) == ("python", "-c")
        assert f"urlopen('http://127.0.0.1:{port}/livez', timeout=5)" in code
        compile(code, name, "exec")
