"""The demo: replays a day of a real shop's orders in a few seconds, and checks that no job was lost.

`rmq.demo.show` runs it, and needs `rmq[cli]`. `rmq.demo.cluster` and `rmq.demo.price_stream` are the workload of
`docker-compose.yml`.
"""
