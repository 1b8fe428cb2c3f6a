"""Reading a topic as a stream."""
