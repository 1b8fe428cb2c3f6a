"""The sinks of `format("rmq")`, which write a frame or the micro-batches of a stream to a topic."""
