"""The demo: a day of a real shop's orders in a few seconds, and the proof that no job was lost.

`rmq.demo.show` runs it, and needs `rmq[cli]`. `rmq.demo.spark` does not: it also runs on clusters.
"""
