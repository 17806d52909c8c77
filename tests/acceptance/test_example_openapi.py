"""Example 3 on FastAPI answers as its own OpenAPI document says: requests that schemathesis makes of the document."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.shop_driver import serving
from tests.support.night import SEED

NOT_ASKED = (
    "positive_data_acceptance",  # a key that was used, an ETag that is old: no schema can say that they are refused
    "allow_header_conformance",  # Starlette answers 405 with the methods of one route of the path
)


@pytest.mark.night
def test_answers_are_as_documented(tmp_path: Path):
    with serving("fastapi", tmp_path / "data") as shop:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{shop.url}/openapi.json"]
        command += ["--header", "X-User: ada", "--checks", "all", "--exclude-checks", ",".join(NOT_ASKED)]
        command += [
            "--max-examples",
            "20",
            "--seed",
            str(SEED),
            "--generation-database",
            "none",
            "--continue-on-failure",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        found = re.search(r"(\d+) generated", said)
        assert found is not None, said
        assert int(found[1]) > 100
        assert "Traceback" not in shop.log.read_text()
