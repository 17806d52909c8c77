"""The driver's record of prepared statements, which is not public."""

import psycopg
from sqlalchemy import make_url


def test_this_psycopg_counts_its_prepared_statements_where_name_apart_looks(postgresql_url: str):
    url = make_url(postgresql_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        assert hasattr(getattr(connection, "_prepared", None), "_prepared_idx"), (
            f"psycopg {psycopg.__version__} has no _prepared._prepared_idx; 3.3.7 to 3.3.9 have. Workers are correct "
            "without, and prepare nothing: find the new place for name_apart in outboxkit/database/connections.py"
        )
