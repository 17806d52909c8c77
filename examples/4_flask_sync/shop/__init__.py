"""The shop. `orders` is what it is about; `api` and `handlers` are its two doors; `workers` carry messages between."""
