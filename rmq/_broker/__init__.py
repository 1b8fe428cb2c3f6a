"""The broker: RMQ's keys in Redis, its scripts as calls, the registry of topics, and the audit log."""
