"""Claiming: when slots are due, claims, settlements, leases and prefetched deliveries."""
