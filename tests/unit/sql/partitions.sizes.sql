SELECT parent.relname AS name, CAST(sum(pg_total_relation_size(leaf.oid)) AS bigint) AS bytes, CAST(sum(CASE WHEN
    leaf.relkind = 'r' THEN leaf.reltuples ELSE 0 END) AS bigint) AS estimate
FROM pg_class parent LEFT JOIN LATERAL pg_partition_tree(parent.oid) AS part ON true JOIN pg_class leaf ON leaf.oid =
    coalesce(part.relid, parent.oid)
WHERE parent.relkind IN ('r', 'p') AND NOT parent.relispartition AND parent.relname LIKE 'outboxkit\_%' AND
    pg_table_is_visible(parent.oid)
GROUP BY parent.relname;
