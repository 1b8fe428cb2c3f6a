"""The demo: replays a day of a real shop's orders in a few seconds, and checks that no job was lost.

`rmq.demo.show` runs it, and needs `rmq[cli]`. `rmq.demo.spark` does not need it, and also runs on clusters.
"""
