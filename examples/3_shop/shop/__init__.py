"""The shop. `orders` is what it is about; `handlers` are what comes of messages; `workers` carry them there."""
