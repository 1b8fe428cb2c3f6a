"""The commands of `rmq spark`, a module each."""
