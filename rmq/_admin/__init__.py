"""Look, search, steer, dead letters, history and streams."""
