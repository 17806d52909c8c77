INSERT INTO outboxkit_dead_letter (side, handler, message_id, type, payload, "key", topic, headers,
    correlation_id, causation_id, created_at, content_type, content_encoding, queue, version,
    reason, error, attempts, first_failed_at, traceback) SELECT :side AS anon_1, :handler AS anon_2,
    :message_id AS anon_3, :type AS anon_4, :payload AS anon_5, :key AS anon_6, :topic AS anon_7,
    :headers AS anon_8, :correlation_id AS anon_9, :causation_id AS anon_10, :created_at AS anon_11,
    :content_type AS anon_12, :content_encoding AS anon_13, :queue AS anon_14, :version AS anon_15,
    :reason AS anon_16, :error AS anon_17, :attempts AS anon_18, :first_failed_at AS anon_19,
    :traceback AS anon_20
WHERE NOT (EXISTS (SELECT 1
        FROM outboxkit_dead_letter AS there
        WHERE there.message_id = :message_id AND there.queue = :queue AND there.handler IS :handler
            AND there.side = :side AND there.resolution IS NULL));
