"""Alerts and dashboard: each name in them is a metric's, and each alert has its section in the runbook."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outboxkit.telemetry import catalogue
from outboxkit.telemetry.catalogue import Kind

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "workers" / "prometheus"
DASHBOARD = ROOT / "workers" / "grafana" / "outboxkit.json"
RUNBOOK = ROOT / "docs" / "how-to" / "runbook.md"
NAME = re.compile(r"\b(?:outboxkit|messaging)_\w+")
SUFFIXES = ("_bucket", "_count", "_sum")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "outboxkit.rules.yml").read_text())["groups"]
    return group["rules"]


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]


def queries() -> Iterator[Any]:
    """Every query of alerts and panels."""
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in panels():
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


def series() -> dict[str, tuple[str, ...]]:
    """The series that a scrape may have, with their labels."""
    found: dict[str, tuple[str, ...]] = {}
    for metric in catalogue.METRICS:
        suffixes = SUFFIXES if metric.kind is Kind.HISTOGRAM else ("",)
        labels = tuple(name.replace(".", "_") for name in metric.attributes)
        found |= {metric.prometheus_name + suffix: labels for suffix in suffixes}
    return found


@pytest.mark.parametrize("query", list(queries()))
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: str):
    known = series()
    names = set(NAME.findall(query))
    assert names or "process_" in query or query.startswith("up{")
    assert names <= known.keys()
    labels = {label for name in names for label in known[name]} | {"le", "job", "instance", "pod", "service"}
    grouped = re.findall(r"\b(?:by|without|ignoring) \(([^)]*)\)", query)
    matched = re.findall(r"[{,](\w+)(?:=|!=|=~)", query)
    asked = {label.strip() for group in grouped for label in group.split(",")} | set(matched)
    assert asked <= labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_what_repairs_it(rule: dict[str, Any]):
    told = rule["annotations"]
    assert set(told) == {"summary", "description", "command", "runbook_url"}
    assert told["runbook_url"].endswith(f"/docs/how-to/runbook.md#{rule['alert'].lower()}")
    assert rule["labels"]["severity"] in ("critical", "warning")
    section = re.search(rf"^## {rule['alert']}\n(.*?)(?=^## |\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    assert " ".join(told["command"].split()[:2]) in section[1]


def test_the_runbook_has_no_section_of_an_alert_that_does_not_exist():
    sections = re.findall(r"^## (Outboxkit\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]


def test_each_alert_is_tested_where_it_fires_and_where_it_does_not():
    tested = yaml.safe_load((PROMETHEUS / "outboxkit.rules.test.yml").read_text())["tests"]
    cases = [
        (test["alert_rule_test"][0]["alertname"], bool(test["alert_rule_test"][0]["exp_alerts"])) for test in tested
    ]
    assert cases == [(rule["alert"], fires) for rule in rules() for fires in (True, False)]


def test_workers_of_the_compose_file_are_scraped_where_they_listen():
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (static,) = job["static_configs"]
    services = yaml.safe_load((ROOT / "workers" / "compose.yaml").read_text())["services"]
    for target in static["targets"]:
        name, _, port = target.partition(":")
        assert services[name]["environment"]["OUTBOXKIT_ADMIN_PORT"] == f"0.0.0.0:{port}"
    assert static["labels"] == {"service": "shop"}, "by which alerts and dashboard tell services apart"
    assert config["rule_files"] == ["outboxkit.rules.yml"]


@pytest.mark.night
@pytest.mark.parametrize(
    "arguments", [("check", "config", "prometheus.yml"), ("test", "rules", "outboxkit.rules.test.yml")]
)
def test_promtool_finds_nothing_to_complain_of(arguments: tuple[str, ...]):
    done = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
