"""Benchmarks of RMQ; each is run by `python -m benchmarks.<name>` or `rmq bench <name>` from a checkout."""
