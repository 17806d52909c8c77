SELECT coalesce((SELECT sum(pg_relation_size(anon_2.relid)) AS sum_1
        FROM pg_partition_tree(to_regclass('outboxkit_outbox')) AS anon_2),
            pg_relation_size(to_regclass('outboxkit_outbox'))) /
            CAST(CAST(current_setting('block_size') AS INTEGER) AS NUMERIC) AS anon_1;
