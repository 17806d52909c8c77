SELECT outboxkit_published.published_at, outboxkit_published.position,
    substr(md5(outboxkit_published.payload), 1, 12) AS substr_1
FROM (SELECT given.positions AS positions, given.ats AS ats
    FROM unnest(:positions::BIGINT[], :ats::TIMESTAMP WITH TIME ZONE[]) WITH ORDINALITY AS
        given(positions, ats, place)
    ORDER BY given.place) AS wanted JOIN outboxkit_published ON outboxkit_published.published_at =
        wanted.ats AND outboxkit_published.position = wanted.positions;
