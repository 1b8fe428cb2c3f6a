"""Topics as they are registered, and what all of their slots share."""
