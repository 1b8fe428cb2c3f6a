"""When a slot is due, claims, settlements, leases and prefetch."""
