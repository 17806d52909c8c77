"""The Alembic environment in `migrations/`, used as a user uses theirs: by the `alembic` command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect, make_url

from outboxkit import metadata

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent

SHOP = """
import sqlalchemy as sa

metadata = sa.MetaData()
sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("total", sa.Numeric(12, 2)))
"""


def command(program: str, *arguments: str, url: str, folder: Path = ROOT) -> str:
    """The output of a program of the environment, which must end well."""
    done = subprocess.run(
        [PROGRAMS / program, *arguments],
        cwd=folder,
        env={**os.environ, "OUTBOXKIT_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tables(url: str) -> set[str]:
    engine = create_engine(url)
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return found - {"outboxkit_published_default", "outboxkit_inbox_default"}  # partitions


@pytest.fixture(params=["postgresql", "sqlite"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    found: str = request.getfixturevalue("empty_postgresql_url")
    return found


def test_up_and_down_again(empty_url: str):
    command("alembic", "upgrade", "head", url=empty_url)
    assert tables(empty_url) == {*metadata.tables, "alembic_version"}
    assert "No new upgrade operations detected" in command("alembic", "check", url=empty_url)
    assert "up to date at version 5" in command("outboxkit", "migrate", "--check", url=empty_url)

    command("alembic", "downgrade", "base", url=empty_url)
    assert tables(empty_url) == {"alembic_version"}


def test_offline_sql_makes_the_same_tables(empty_postgresql_url: str):
    script = command("alembic", "upgrade", "head", "--sql", url=empty_postgresql_url)
    assert tables(empty_postgresql_url) == set()

    conninfo = make_url(empty_postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(script)  # type: ignore[arg-type]

    assert "No new upgrade operations detected" in command("alembic", "check", url=empty_postgresql_url)
    assert "up to date at version 5" in command("outboxkit", "migrate", "--check", url=empty_postgresql_url)


def test_tables_of_outboxkit_migrate_are_what_alembic_expects(empty_url: str):
    command("outboxkit", "migrate", url=empty_url)
    command("alembic", "stamp", "head", url=empty_url)
    assert "No new upgrade operations detected" in command("alembic", "check", url=empty_url)


def test_autogenerate_beside_an_applications_own_tables(empty_url: str, tmp_path: Path):
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").write_text('[tool.alembic]\nscript_location = "%(here)s/migrations"\n')
    (tmp_path / "shop.py").write_text(SHOP)
    env = tmp_path / "migrations" / "env.py"
    own = env.read_text().replace("target_metadata = [outboxkit", "target_metadata = [shop.metadata, outboxkit")
    env.write_text(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport shop\n{own}")

    command("alembic", "upgrade", "head", url=empty_url, folder=tmp_path)
    command("alembic", "revision", "--autogenerate", "-m", "orders", "--rev-id", "9999", url=empty_url, folder=tmp_path)
    made = (tmp_path / "migrations" / "versions" / "9999_orders.py").read_text()
    assert "op.create_table('orders'" in made
    assert "outboxkit" not in made
    command("alembic", "upgrade", "head", url=empty_url, folder=tmp_path)
    assert tables(empty_url) == {*metadata.tables, "orders", "alembic_version"}
    assert "No new upgrade operations detected" in command("alembic", "check", url=empty_url, folder=tmp_path)
