"""The kill matrix: each step of a process, stopped in each way. `make matrix` runs all of it, other runs a part."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix import CELLS, IN_THE_GATE, Fault, Row, play
from tests.faults.matrix_page import page
from tests.faults.world import World, world
from tests.servers import OwnServer, Server
from tests.support.night import chance

BY_NIGHT = CELLS if os.environ.get("OUTBOXKIT_TEST_MATRIX") else chance("matrix").sample(CELLS, len(CELLS) // 5)


def parameters() -> Iterator[Any]:
    """The cells; their ids are those of the page."""
    for row, fault in CELLS:
        if (row, fault) in IN_THE_GATE:
            yield pytest.param(row, fault, id=f"{row.name}: {fault}")
        elif (row, fault) in BY_NIGHT:
            yield pytest.param(row, fault, id=f"{row.name}: {fault}", marks=pytest.mark.night)


@pytest.fixture(scope="module")
def place(own_postgresql: Server, own_rabbitmq: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(own_postgresql, own_rabbitmq, tmp_path_factory.mktemp("matrix")) as made:
        yield made


@pytest.mark.parametrize(("row", "fault"), list(parameters()))
def test_a_step_may_be_stopped_in_each_way(place: World, row: Row, fault: Fault):
    play(place, row, fault)


def test_the_page_has_these_cells():
    assert Path("docs/explanation/kill-matrix.md").read_text() == page(), "write it: python -m tests.faults.matrix_page"
