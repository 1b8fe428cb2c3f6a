"""The commands of `rmq spark`."""
