"""The server, its clock, this session and roles. None reads a table of outboxkit."""

from typing import Any

from sqlalchemy import (
    ARRAY,
    Select,
    String,
    TextClause,
    bindparam,
    case,
    func,
    literal_column,
    select,
    text,
    type_coerce,
)

from outboxkit.statements.dialects import set_locally, transaction_time
from outboxkit.tables import UtcDateTime

_WATCHED = (*("autovacuum", "fsync", "full_page_writes", "synchronous_commit", "track_counts"),)


def bound_waits() -> Select[Any]:
    """Have this transaction give up a statement after four seconds, and a wait for a lock after two.

    PostgreSQL only. Index: none. Locks: none.
    """
    return set_locally(statement_timeout="4s", lock_timeout="2s")


def facts() -> TextClause:
    """Role, database, and whether the server only reads: one row. PostgreSQL only.

    Index: none. Locks: none.
    """
    return text(
        "SELECT pg_is_in_recovery() AS is_standby, current_setting('transaction_read_only') = 'on' AS is_read_only, "
        "CASE WHEN pg_is_in_recovery() THEN now() - pg_last_xact_replay_timestamp() END AS replay_lag, "
        "CAST(current_user AS text) AS role, current_database() AS database"
    )


def settings() -> TextClause:
    """The server's settings that matter here: name, value in this session, and what set it.

    PostgreSQL only. Index: none. Locks: none.
    """
    names = ", ".join(f"'{name}'" for name in _WATCHED)
    return text(f"SELECT name, setting, source FROM pg_settings WHERE name IN ({names})")  # noqa: S608 - ours


def overrides() -> TextClause:
    """Settings of roles, and of this database, each as `name=value`, with the role's and the database's name.

    Null stands for all of them. PostgreSQL only. Index: none, the catalogue has few rows. Locks: none.
    """
    return text(
        "SELECT pair, rolname AS role, datname AS database FROM pg_db_role_setting "
        "CROSS JOIN LATERAL unnest(setconfig) AS pair LEFT JOIN pg_roles ON pg_roles.oid = setrole "
        "LEFT JOIN pg_database ON pg_database.oid = setdatabase "
        "WHERE setdatabase = 0 OR datname = current_database() ORDER BY pair, rolname, datname"
    )


def clients() -> TextClause:
    """The number of clients that are connected to the server, and of those that may be: one row. PostgreSQL only.

    Index: none. Locks: none.
    """
    return text(
        "SELECT count(*) AS used, CAST(current_setting('max_connections') AS integer) "
        "- CAST(current_setting('superuser_reserved_connections') AS integer) AS most "
        "FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )


def roles() -> TextClause:
    """This role and those of outboxkit's sessions in this database, with what they run.

    PostgreSQL only. Index: none, it reads pg_stat_activity and few rows of catalogs. Locks: none.
    """
    return text(
        "WITH used AS (SELECT usename AS role, application_name AS name FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND pid <> pg_backend_pid() "
        "UNION SELECT current_user, '') "
        "SELECT role, array_agg(DISTINCT name ORDER BY name) AS names FROM used JOIN pg_roles ON rolname = role "
        "GROUP BY role ORDER BY role"
    )


def rights() -> Select[str, str, str, bool]:
    """Whether a role has rights: a row for each table, privilege and column; no column stands for the whole table.

    Parameters: role, tables, privileges, columns (lists of one length). PostgreSQL only. Index: the catalogue's own.
    Locks: none.
    """
    names = ("tables", "privileges", "columns")
    lists = (bindparam(name, type_=ARRAY(String)) for name in names)
    needs = func.unnest(*lists).table_valued(*names).render_derived("needs")
    role, table = bindparam("role", type_=String), func.to_regclass(needs.c.tables)
    of_table = func.has_table_privilege(role, table, needs.c.privileges)
    of_column = func.has_column_privilege(role, table, needs.c.columns, needs.c.privileges)
    granted = case((needs.c.columns == literal_column("''"), of_table), else_=of_column)
    return select(needs.c.tables, needs.c.privileges, needs.c.columns, func.coalesce(granted, literal_column("false")))


def hidden_tables() -> TextClause:
    """The tables of outboxkit of which a role sees no row: row-level security is on, and no policy is for the role.

    Parameters: role. PostgreSQL only. Index: the catalogue's own. Locks: none.
    """
    return text(
        "SELECT relname FROM pg_class JOIN pg_roles ON rolname = :role "
        "WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('outboxkit_outbox')) "
        "AND starts_with(relname, 'outboxkit_') AND relrowsecurity AND NOT relispartition "
        "AND NOT (rolsuper OR rolbypassrls) "
        "AND (relforcerowsecurity OR NOT pg_has_role(pg_roles.oid, relowner, 'USAGE')) "
        "AND NOT EXISTS (SELECT FROM pg_policy, unnest(polroles) AS member WHERE polrelid = pg_class.oid "
        "AND CASE WHEN member = 0 THEN true ELSE pg_has_role(pg_roles.oid, member, 'USAGE') END) ORDER BY relname"
    )


def process_id() -> Select[int]:
    """The number of the server process that runs this transaction. PostgreSQL only. Index: none. Locks: none."""
    return select(func.pg_backend_pid())


def moment(dialect: str) -> Select[Any]:
    """The time by the database's clock: the start of the transaction. Locks: none."""
    return select(type_coerce(transaction_time(dialect), UtcDateTime))
