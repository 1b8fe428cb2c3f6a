"""The streaming sources of `format("rmq")`, which read topics in micro-batches."""
