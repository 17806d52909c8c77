"""The table of findings: its texts, and what the alerts, the runbook and the reference have of it."""

import re
from datetime import timedelta
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import yaml

from outboxkit.operators.findings import ALERT_LIMITS, FINDINGS, LIMITS, Severity, finding

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "workers/prometheus/outboxkit.rules.yml").read_text())["groups"][0]["rules"]
RUNBOOK = (ROOT / "docs/how-to/runbook.md").read_text()
ALERTS = {rule["alert"]: rule for rule in RULES}


def facts(code: str) -> set[str]:
    kind = FINDINGS[code]
    texts = (kind.what, kind.why, kind.cure, *kind.commands)
    return {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("code", FINDINGS)
def test_a_kind_has_all_of_its_texts(code: str):
    made = finding(code, **dict.fromkeys(facts(code), "x"))
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    assert made.why.endswith(".")
    assert made.cure[-1] in ".:x"
    assert not any("{" in text.replace("{x", "") for text in (made.what, made.why, made.cure))
    assert made.severity is FINDINGS[code].severity
    assert FINDINGS[code].worse is not FINDINGS[code].severity


def test_a_fact_of_several_values_makes_a_command_for_each():
    waits = {"waits": "1 message waits", "no_relay": "none is connected"}
    made = finding("relay-missing", worse=True, relays=("outboxkit relay", "outboxkit relay --destination b"), **waits)
    assert made.commands == ("outboxkit relay", "outboxkit relay --destination b")
    assert made.severity is Severity.PROBLEM
    assert made.what == "1 message waits, and none is connected."


def test_a_command_without_its_fact_is_left_out():
    made = finding("vacuum-held-back", holder="The prepared transaction x", age="1 h ago", gid="'x'")
    assert made.commands == ("COMMIT PREPARED 'x';", "ROLLBACK PREPARED 'x';")


def test_each_alert_is_explained_by_a_finding_and_each_finding_names_alerts_that_there_are():
    assert {alert for kind in FINDINGS.values() for alert in kind.alerts} == ALERTS.keys()


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
