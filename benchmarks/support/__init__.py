"""What the benchmarks share: servers, child processes, meters, loads, and how results are kept and drawn."""
