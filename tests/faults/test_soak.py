"""Soaks of real processes under faults: a short one of a fixed seed, and by night one of minutes."""

from pathlib import Path

import pytest

from tests.faults.faults import ALL, SHORT
from tests.faults.soak import soak
from tests.servers import OwnServer, Server
from tests.support.night import SEED


def test_a_short_soak_breaks_no_promise(own_postgresql: Server, own_rabbitmq: OwnServer, tmp_path: Path):
    report = soak(own_postgresql, own_rabbitmq, tmp_path, seed=20260, seconds=8, names=list(SHORT), longest=1)
    assert not report.verdicts, f"{report}\nagain: make soak MINUTES=0.1 SEED=20260"
    assert len(report.history.handled) > len(report.history.committed) > 50


@pytest.mark.night
def test_a_soak_of_minutes_breaks_no_promise(own_postgresql: Server, own_rabbitmq: OwnServer, tmp_path: Path):
    report = soak(own_postgresql, own_rabbitmq, tmp_path, seed=SEED, seconds=150, names=list(ALL))
    assert not report.verdicts, f"{report}\nagain: make soak MINUTES=2.5 SEED={SEED}"
