"""The commands of `rmq`, a module each."""
