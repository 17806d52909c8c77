"""Tools of operators: doctor, trace, dead letters, replay, reconcile, event schemas. The core needs none of them."""
