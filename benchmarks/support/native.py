"""The native floor: the same work in bare Redis commands on as many sets, encoded beforehand, over one plain socket.

A message's life costs at least a ZADD (send), a ZPOPMIN or ZPOPMAX and a ZADD (claim), and a ZREM (ack). There is no
lease, retry, fencing, compare-and-set or count in it: what is lost on the way is lost.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import hiredis

IN_FLIGHT = 4
_CLAIM_SCORE = 1_800_000_000_016


class Pipe:
    """One connection with several requests on their way.

    Args:
        port: The server's.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader: Any = hiredis.Reader()

    def run(self, requests: Iterable[bytes], replies_each: int = 1) -> list[Any]:
        """Send all requests, a few ahead of the replies; each is answered by `replies_each` of those returned."""
        awaited, replies = 0, list[Any]()
        for request in requests:
            self._socket.sendall(request)
            awaited += 1
            if awaited == IN_FLIGHT:
                self._read(replies_each, replies)
                awaited -= 1
        self._read(awaited * replies_each, replies)
        return replies

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self, number: int, replies: list[Any]) -> None:
        while number:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(262_144))
                continue
            if isinstance(reply, Exception):
                raise reply
            replies.append(reply)
            number -= 1


@dataclass(frozen=True, slots=True)
class Life:
    """A load in native commands, encoded.

    Attributes:
        sends: ZADDs into the store.
        claims: Per batch a ZPOPMIN (or ZPOPMAX), a ZADD into prepare, and the ZREM that acks it.
        number: Messages.
    """

    sends: list[bytes]
    claims: list[bytes]
    number: int


def encode(contents: Sequence[bytes], scores: Sequence[int], batch: int, highest_first: bool, slots: int = 1) -> Life:
    """Encode a load; what each pop will return is known beforehand. Slots take turns, batch by batch."""
    parts = [
        _encode_slot(slot, contents[slot::slots], scores[slot::slots], batch, highest_first) for slot in range(slots)
    ]
    sends, claims = (
        [each for turn in zip_longest(*ways) for each in turn if each] for ways in zip(*parts, strict=True)
    )
    return Life(sends, claims, len(contents))


def _encode_slot(
    slot: int, contents: Sequence[bytes], scores: Sequence[int], batch: int, highest_first: bool
) -> tuple[list[bytes], list[bytes]]:
    store, prepare = b"native_%d" % slot, b"prepare{native_%d}" % slot
    sends = [
        pack(b"ZADD", store, *pairs(scores[first : first + batch], contents[first : first + batch]))
        for first in range(0, len(contents), batch)
    ]
    ranked = [content for _, content in sorted(zip(scores, contents, strict=True), reverse=highest_first)]
    pop = b"ZPOPMAX" if highest_first else b"ZPOPMIN"
    claims: list[bytes] = []
    for first in range(0, len(ranked), batch):
        part = ranked[first : first + batch]
        claims.append(
            pack(pop, store, len(part))
            + pack(b"ZADD", prepare, *pairs([_CLAIM_SCORE] * len(part), part))
            + pack(b"ZREM", prepare, *part)
        )
    return sends, claims


def pack(*words: bytes | str | int) -> bytes:
    """Encode a command."""
    return hiredis.pack_command(words)  # pyright: ignore[reportArgumentType]


def pairs(scores: Sequence[int], contents: Sequence[bytes]) -> list[bytes | int]:
    """Return scores and contents, alternating."""
    return [value for pair in zip(scores, contents, strict=True) for value in pair]
