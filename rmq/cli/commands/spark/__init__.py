"""The commands of `rmq spark`, one module per command."""
