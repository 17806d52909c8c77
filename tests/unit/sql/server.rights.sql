SELECT needs.tables, needs.privileges, needs.columns, coalesce(CASE WHEN (needs.columns = '') THEN
    has_table_privilege(:role, to_regclass(needs.tables), needs.privileges) ELSE has_column_privilege(:role,
    to_regclass(needs.tables), needs.columns, needs.privileges) END, false) AS coalesce_1
FROM unnest(:tables::VARCHAR[], :privileges::VARCHAR[], :columns::VARCHAR[]) AS needs(tables, privileges, columns);
