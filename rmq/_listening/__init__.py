"""Listeners: their threads, who may run, and the heartbeat."""
