"""The Alembic environment in `migrations/`, used as a user uses theirs: by the `alembic` command."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect, make_url

from outboxkit import metadata
from tests.processes import ROOT, programs
from tests.support.pages import blocks

SHOP = """
import sqlalchemy as sa

metadata = sa.MetaData()
sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("total", sa.Numeric(12, 2)))
"""


def command(program: str | Path, *arguments: str, url: str, folder: Path = ROOT, **environment: str) -> str:
    """The output of a program, of the environment unless it is a path. It must end well."""
    done = subprocess.run(
        [programs() / program, *arguments],
        cwd=folder,
        env={**os.environ, "OUTBOXKIT_DATABASE_URL": url, **environment},
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
    assert "up to date at version 1" in command("outboxkit", "migrate", "--check", url=empty_url)

    command("alembic", "downgrade", "base", url=empty_url)
    assert tables(empty_url) == {"alembic_version"}


def test_offline_sql_makes_the_same_tables(empty_postgresql_url: str):
    script = command("alembic", "upgrade", "head", "--sql", url=empty_postgresql_url)
    assert tables(empty_postgresql_url) == set()

    conninfo = make_url(empty_postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(script)  # type: ignore[arg-type]

    assert "No new upgrade operations detected" in command("alembic", "check", url=empty_postgresql_url)
    assert "up to date at version 1" in command("outboxkit", "migrate", "--check", url=empty_postgresql_url)


def test_no_partition_is_dropped_where_outboxkit_migrate_made_the_tables(empty_postgresql_url: str, tmp_path: Path):
    """No revision imports outboxkit.schema.migrations then: `import outboxkit` in env.py has to do."""
    url = empty_postgresql_url
    write_history(tmp_path)
    command("outboxkit", "migrate", url=url, folder=tmp_path)
    command("outboxkit", "prune", url=url, folder=tmp_path, OUTBOXKIT_PUBLISHED_RETENTION="7d")
    command("alembic", "revision", "--autogenerate", "-m", "orders", "--rev-id", "9999", url=url, folder=tmp_path)
    made = (tmp_path / "migrations" / "versions" / "9999_orders.py").read_text()
    assert "op.create_table('orders'" in made
    assert "outboxkit" not in made
    command("alembic", "upgrade", "head", url=url, folder=tmp_path)
    assert "No new upgrade operations detected" in command("alembic", "check", url=url, folder=tmp_path)


def test_no_partition_is_dropped_where_outboxkit_was_imported_before_alembic(empty_postgresql_url: str, tmp_path: Path):
    """As in a command of an application. Alembic finds the plugin by the package's entry points."""
    write_history(tmp_path)
    write_entry_points(tmp_path)
    (tmp_path / "release.py").write_text(RELEASE)
    url = f"{empty_postgresql_url}?options=-csearch_path%3Dmessages"
    # not forked from a process that has imported Alembic already
    said = command(Path(sys.executable), "release.py", url=url, folder=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert said.endswith("nothing of outboxkit\n")


RELEASE = """
import os
import sys

import outboxkit
from sqlalchemy import create_engine, text

assert "alembic" not in sys.modules
from alembic import command
from alembic.config import Config

from outboxkit.tables import metadata

engine = create_engine(os.environ["OUTBOXKIT_DATABASE_URL"])
with engine.begin() as connection:
    connection.execute(text("CREATE SCHEMA IF NOT EXISTS messages"))
    metadata.create_all(connection)
    day = "PARTITION OF outboxkit_published FOR VALUES FROM ('2026-03-01') TO ('2026-03-02')"
    connection.execute(text(f"CREATE TABLE outboxkit_published_20260301 {day}"))
engine.dispose()
made = command.revision(Config(toml_file="pyproject.toml"), autogenerate=True, sql=False)
print("nothing of outboxkit" if "outboxkit" not in open(made.path).read() else open(made.path).read())
os.remove(made.path)
"""


def write_history(folder: Path) -> None:
    """An empty history of an application's own, with the env.py of docs/how-to/use-your-alembic.md."""
    (folder / "migrations" / "versions").mkdir(parents=True)
    shutil.copy(ROOT / "migrations" / "script.py.mako", folder / "migrations")
    env = next(block.body for block in blocks("docs/how-to/use-your-alembic.md") if block.path == "migrations/env.py")
    (folder / "migrations" / "env.py").write_text(env)
    (folder / "pyproject.toml").write_text(
        '[tool.alembic]\nscript_location = "%(here)s/migrations"\nprepend_sys_path = ["."]\n'
    )
    (folder / "shop").mkdir()
    (folder / "shop" / "models.py").write_text(f"{SHOP}\nclass Base:\n    metadata = metadata\n")


def write_entry_points(folder: Path) -> None:
    """What an installation of this tree has, wherever the tests' own comes from."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    place = folder / "outboxkit-0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: outboxkit\nVersion: 0\n")
    named = [f"{name} = {value}" for name, value in groups["alembic.plugins"].items()]
    (place / "entry_points.txt").write_text("\n".join(["[alembic.plugins]", *named, ""]))


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
