SELECT home.nspname, pg_get_userbyid(parent.relowner), space.nspname, child.relname
FROM pg_class parent JOIN pg_namespace home ON home.oid = parent.relnamespace LEFT JOIN pg_inherits part ON
    part.inhparent = parent.oid LEFT JOIN pg_class child ON child.oid = part.inhrelid LEFT JOIN pg_namespace space ON
    space.oid = child.relnamespace
WHERE parent.oid = to_regclass('outboxkit_inbox');
