"""What a faulty network does to one reply: the proxy's decisions, without its sockets."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

SUBSCRIBING = frozenset({"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR"})


@dataclass(frozen=True)
class Verdict:
    """What becomes of one reply.

    Attributes:
        forward: The bytes to pass on: all, some or none.
        cut: Whether the connection is cut then.
        delay_s: How long after its arrival the reply is passed on.
    """

    forward: bytes
    cut: bool = False
    delay_s: float = 0.0


class Faults:
    """The faults that are switched on now. Thread-safe; each `decide` is one step.

    A `command` limits a fault to the replies to commands of this name (case does not matter); None: all replies,
    including those to the commands with which a client greets the server.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.dropped = 0
        self.clear()

    def clear(self) -> None:
        """Switch all faults off."""
        with self._lock:
            self._delay_s = (0.0, 0.0)
            self._random = random.Random(0)
            self._delay_command: str | None = None
            self._drops_left = 0
            self._drop_command: str | None = None
            self._replies_until_cut = 0
            self._cut_command: str | None = None
            self._bytes_until_cut = -1

    def delay(self, shortest_s: float, longest_s: float, seed: int, command: str | None) -> None:
        """Delay each reply by a time drawn from this range."""
        with self._lock:
            self._delay_s = (shortest_s, longest_s)
            self._random = random.Random(seed)
            self._delay_command = _name(command)

    def drop(self, count: int, command: str | None) -> None:
        """Swallow the next `count` replies; below zero: all."""
        with self._lock:
            self._drops_left, self._drop_command = count, _name(command)

    def cut_before_reply(self, nth: int, command: str | None) -> None:
        """Cut the connection instead of passing on the nth reply from now (1: the next)."""
        with self._lock:
            self._replies_until_cut, self._cut_command = nth, _name(command)

    def cut_after_bytes(self, count: int) -> None:
        """Cut the connection when `count` bytes of replies have been passed on from now."""
        with self._lock:
            self._bytes_until_cut = count

    def decide(self, reply: bytes, command: str) -> Verdict:
        """Decide about one reply (or message of a subscription); a cut is then used up."""
        with self._lock:
            if self._replies_until_cut and self._cut_command in (None, command):
                self._replies_until_cut -= 1
                if self._replies_until_cut == 0:
                    return Verdict(b"", cut=True)
            if self._drops_left and self._drop_command in (None, command):
                self._drops_left -= 1
                self.dropped += 1
                return Verdict(b"")
            delay_s = self._random.uniform(*self._delay_s) if self._delay_command in (None, command) else 0.0
            if self._bytes_until_cut < 0:
                return Verdict(reply, delay_s=delay_s)
            if len(reply) < self._bytes_until_cut:
                self._bytes_until_cut -= len(reply)
                return Verdict(reply, delay_s=delay_s)
            part, self._bytes_until_cut = reply[: self._bytes_until_cut], -1
            return Verdict(part, cut=True, delay_s=delay_s)


def _name(command: str | None) -> str | None:
    return command.upper() if command else None
