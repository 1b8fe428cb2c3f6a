"""Schedules: what is sent again and again, and when; put, listed and removed; and who sends their messages."""
