"""What users would take instead of RMQ: same server, same run, no-op handlers, each in an environment of its own."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison. Imported only here: adapters import this package in environments that lack the rest."""
    from benchmarks.peers.comparison import BENCHMARK

    return BENCHMARK.main(argv)
