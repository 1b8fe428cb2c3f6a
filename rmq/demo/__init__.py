"""The demo: a day of a real shop's orders in a few seconds, and the proof that no job was lost."""

from rmq.demo.show import run

__all__ = ["run"]
