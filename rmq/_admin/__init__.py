"""What operators see and do: figures, search, control, dead letters, history and streams."""
