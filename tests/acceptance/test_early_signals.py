"""A signal while a command is still imported: it ends as cleanly as later."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes import ROOT

SLOW = "import time; print('importing', flush=True); time.sleep(3600)"


@pytest.mark.parametrize(
    ("arguments", "module", "number", "code"),
    [
        (("relay",), "typer", signal.SIGTERM, 0),
        (("relay", "--drain"), "pydantic", signal.SIGTERM, 3),
        (("consume", "handlers_of_mine"), "handlers_of_mine", signal.SIGINT, 130),
        (("status",), "sqlalchemy", signal.SIGINT, 130),
    ],
)
def test_it_ends_without_a_traceback(
    tmp_path: Path, arguments: Sequence[str], module: str, number: signal.Signals, code: int
):
    (tmp_path / f"{module}.py").write_text(SLOW)
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "OUTBOXKIT_DATABASE_URL": "postgresql://127.0.0.1:1/shop",
        "OUTBOXKIT_BROKER_URL": "amqp://127.0.0.1:1/",
        "OUTBOXKIT_QUEUE": "billing",
    }
    command = [sys.executable, "-m", "outboxkit", *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "importing\n"
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, "Traceback" in err) == (code, False), err
    assert ("stopped before the drain began" in err) == (code == 3)
