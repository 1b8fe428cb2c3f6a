"""What RMQ has in Redis: its keys, its scripts as calls, and who may change what."""
