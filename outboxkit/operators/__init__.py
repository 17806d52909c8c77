"""Tools of operators: doctor, trace, dead letters, replay, reconcile, event schemas. The core needs none of them.

Each function that reads the tables raises `SchemaError` if they are missing or old.
"""
