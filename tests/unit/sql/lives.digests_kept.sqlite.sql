SELECT outboxkit_published.published_at, outboxkit_published.position, outboxkit_published.payload
FROM (SELECT given.value AS value, json_extract(:ats, printf('$[%d]', given."key")) AS
    json_extract_1
    FROM json_each(:positions) AS given
    WHERE 1 = 1
    ORDER BY given."key") AS wanted JOIN outboxkit_published ON outboxkit_published.published_at =
        wanted.json_extract_1 AND outboxkit_published.position = wanted.value;
