"""Long fault tests, run on demand by `make torture`."""
