"""`rmq dashboard`: pages that show what the queue does and let one steer it. Needs the extra `rmq[dashboard]`."""
