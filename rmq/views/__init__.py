"""What the command line and the dashboard show alike: readings, findings, checks, columns, documents and words.

It stands on `rmq` and `rmq.spi`, as they do. Like `rmq.spi` it is outside the promise of a release.
"""
