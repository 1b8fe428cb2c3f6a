"""Listeners: their threads, the limits of concurrent handlers, and the heartbeat."""
