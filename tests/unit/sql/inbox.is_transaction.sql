SELECT coalesce(CAST(pg_current_xact_id_if_assigned() AS VARCHAR) = :transaction, false) AS coalesce_1;
