SELECT coalesce(((SELECT max(rowid) AS max_1
            FROM outboxkit_outbox) - (SELECT min(rowid) AS min_1
            FROM outboxkit_outbox)) + 1, 0) AS coalesce_1;
