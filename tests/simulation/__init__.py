"""A deterministic simulation: the real library and scripts in one thread, with virtual time and a bad network."""
