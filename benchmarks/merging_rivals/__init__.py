"""What merging queues lose: the same sends to each, a handler that notes what arrives, faults meanwhile."""

from benchmarks.merging_rivals.comparison import main as main
