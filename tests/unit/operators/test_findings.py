"""The table of findings: its texts, and what the alerts, the runbook and the reference have of it."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from outboxkit.operators.findings import ALERT_LIMITS, FINDINGS, LIMITS, finding

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "workers/prometheus/outboxkit.rules.yml").read_text())["groups"][0]["rules"]
RUNBOOK = (ROOT / "docs/how-to/runbook.md").read_text()
ALERTS = {rule["alert"]: rule for rule in RULES}


def test_each_alert_is_explained_by_a_finding_and_each_finding_names_alerts_that_there_are():
    of_applications = {"OutboxkitKeyMismatch"}  # the database does not tell of it
    assert {alert for kind in FINDINGS.values() for alert in kind.alerts} == ALERTS.keys() - of_applications


@pytest.mark.parametrize("alert", ALERTS)
def test_the_section_of_an_alert_names_its_findings(alert: str):
    section = re.search(rf"^## {alert}\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert section is not None
    (line,) = re.findall(r"^Findings: (.*)\.$", section[1], re.MULTILINE)
    assert re.findall(r"`([\w-]+)`", line) == [code for code, kind in FINDINGS.items() if alert in kind.alerts]


def seconds(rule: dict[str, Any]) -> set[float]:
    """The numbers in the expression of a rule that it compares with; a product counts as one."""
    found = re.findall(r'(?:[<>] |le=")([\d.]+(?: \* \d+)?)', rule["expr"])
    return {float(first) * float(second or 1) for first, _, second in (text.partition(" * ") for text in found)}


@pytest.mark.parametrize(("alert", "limit"), ALERT_LIMITS.items())
def test_an_alert_fires_from_the_limit_of_the_table(alert: str, limit: timedelta):
    assert limit.total_seconds() in seconds(ALERTS[alert])


def test_retention_is_missed_when_the_window_is_over_and_rows_stay():
    window = timedelta(days=14)
    day = timedelta(days=1)
    assert seconds(ALERTS["OutboxkitRetentionNotRun"]) == {(window + day + LIMITS.forgotten).total_seconds()}


def test_the_reference_has_every_code_with_its_severities():
    page = (ROOT / "docs/reference/findings.md").read_text()
    documented = dict(re.findall(r"^\| `([\w-]+)` \| ([\w; ]+) \|", page, re.MULTILINE))
    kinds = FINDINGS.items()
    assert documented == {code: "; ".join(filter(None, (kind.severity, kind.worse))) for code, kind in kinds}


def test_a_servers_sentence_becomes_a_part_of_ours():
    made = finding("database-away", database="postgresql://db/shop", reason="FATAL:  no such database. Is it right?")
    assert made.what == "postgresql://db/shop cannot be used: FATAL: no such database. Is it right."
