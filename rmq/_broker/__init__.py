"""The broker: RMQ's keys in Redis, and the scripts of producers and consumers as calls."""
