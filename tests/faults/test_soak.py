"""Soaks of real processes under faults: a short one of a fixed seed, and by night one of minutes."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.faults import SHORT
from tests.faults.replicated import Replicated
from tests.faults.soak import Run, soak
from tests.servers import OwnServer, Server
from tests.servers.cluster import NODES, provide_cluster
from tests.servers.postgresql import find_programs
from tests.support.night import SEED


def test_a_short_soak_breaks_no_promise(own_postgresql: Server, own_rabbitmq: OwnServer, tmp_path: Path):
    run = Run(seed=21498, seconds=8, names=tuple(SHORT), longest=1)
    report = soak(own_postgresql, own_rabbitmq, tmp_path, run)
    assert not report.verdicts, report
    assert report.faults["worker killed"] > 1, "its seed kills a relay and a consumer"
    assert len(report.history.handled) > len(report.history.committed) > 20


@pytest.mark.night
def test_a_soak_of_minutes_breaks_no_promise(own_postgresql: Server, own_rabbitmq: OwnServer, tmp_path: Path):
    report = soak(own_postgresql, own_rabbitmq, tmp_path, Run(seed=SEED, seconds=150))
    assert not report.verdicts, report


@pytest.mark.night
def test_a_soak_of_a_cluster_a_standby_a_pooler_and_clocks_that_are_set_breaks_no_promise(tmp_path: Path):
    programs = find_programs()
    assert programs is not None, "it needs PostgreSQL's programs on this machine"
    with ExitStack() as servers:
        database, broker = Replicated(programs), provide_cluster()
        for server in (database, broker):
            servers.callback(server.close)
            server.start()
        run = Run(seed=SEED, seconds=150, nodes=NODES, pooler=True, standby=True, clocks=True)
        report = soak(database, broker, tmp_path, run)
    assert not report.verdicts, report
