"""Writing a frame to a topic."""
