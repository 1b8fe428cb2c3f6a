"""Topics, messages, deliveries and figures: values and decisions without I/O."""
