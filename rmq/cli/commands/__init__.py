"""The modules of the commands of `rmq`."""
