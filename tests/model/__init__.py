"""Models of the protocol in Promela, checked by `spin`: `make model`, and docs/explanation/model.md."""
