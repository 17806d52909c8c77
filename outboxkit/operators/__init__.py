"""Tools of operators: doctor, trace, dead letters, replay, reconcile, event schemas. The core needs none of them.

What reads the tables raises `SchemaError` if they are missing or old, or leaves that check to its caller.
"""
