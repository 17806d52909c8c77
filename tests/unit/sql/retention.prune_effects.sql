DELETE FROM outboxkit_effect
WHERE ctid = ANY (array((SELECT ctid
            FROM outboxkit_effect
            WHERE outboxkit_effect.used_at < :used_at_1 AND outboxkit_effect.locked_until < :locked_until_1 AND
                (outboxkit_effect.message_id IS NULL AND outboxkit_effect.used_at < :used_at_2 OR
                outboxkit_effect.message_id IS NOT NULL AND (SELECT outboxkit_inbox.processed_at
                    FROM outboxkit_inbox
                    WHERE outboxkit_inbox.handler = outboxkit_effect.handler AND outboxkit_inbox.message_id =
                        outboxkit_effect.message_id) < :param_1)
            ORDER BY outboxkit_effect.used_at
            LIMIT :param_2
            FOR UPDATE SKIP LOCKED)));
