"""Ids of the sends of a process, so that a repeated send counts once.

A client numbers its calls in sequences called lanes. Each call carries the lowest number of its lane that may still be
repeated, so that the server can drop the stored replies below it.
Source: RIFL (Lee et al., SOSP 2015). See docs/internals/merging.md.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from threading import Lock
from typing import NamedTuple

OPEN_CALLS = 32
"""Maximum number of calls of a lane from its lowest open one: the server stores and reads the replies of all these."""


class RpcId(NamedTuple):
    """Identifies a call and its repeats.

    Attributes:
        lane: Name of its sequence of numbers. No other process uses it, unless the caller chose the name (`once`).
        number: Its number in the lane, from 1.
        floor: The lowest number of the lane that may still be repeated.
        token: Keeps the number open while the call exists.
        key: Hash in which the completion of a chunk of a Spark task is kept; empty for the client's calls.
        digest: Digest of the messages of a chunk. Its lane is its name, its number that of the batch, from 0.
        keep: Seconds for which the completion of a chunk is kept. On topics that merge, 1 or 0 follows, for whether to
            refuse other messages than the batch has sent before, and the number of messages of the chunk sent before
            these.
    """

    lane: str
    number: int
    floor: int
    token: object = None
    key: str = ""
    digest: str = ""
    keep: str = ""

    @property
    def chunk(self) -> str:
        """The chunk of a Spark task as an argument of scripts whose sends merge by content; empty for other calls."""
        return f"{self.lane} {self.number} {self.digest} {self.keep}" if self.key else ""


def named_rpc_id(name: str, number: int) -> RpcId:
    """Return the id of a call that another process may repeat, from the caller's name and a number from 1.

    The server reads all replies of a lane for each of its calls. So a name has one lane for every `OPEN_CALLS` numbers.
    """
    return RpcId(f"={(number - 1) // OPEN_CALLS}:{name}", number, 0)


def part_rpc_id(rpc_id: RpcId, part: int) -> RpcId:
    """Return the id of part `part`, from 1, of a call that the caller named. A repeat is split into the same parts."""
    name = rpc_id.lane.partition(":")[2]
    return RpcId(f"={rpc_id.number}.{(part - 1) // OPEN_CALLS}:{name}", part, 0)


class _Lane:
    """A sequence of numbers. A number is open while its call exists."""

    __slots__ = ("name", "next", "open")

    def __init__(self) -> None:
        self.name = secrets.token_urlsafe(9)
        self.next = 1
        self.open: set[int] = set()

    def floor(self) -> int:
        """Return the lowest open number, or the next number if none is open."""
        return min(self.open.copy(), default=self.next)


class _Token:
    """Closes the number of a call when the call is deleted, since it cannot be repeated any more."""

    __slots__ = ("_lane", "_number")

    def __init__(self, lane: _Lane, number: int) -> None:
        self._lane, self._number = lane, number
        lane.open.add(number)

    def __del__(self) -> None:
        self._lane.open.discard(self._number)


class RpcIdAllocator:
    """Allocates the ids of a client's calls. Thread-safe.

    All producers of a client share its lanes, so that a program which makes a producer for each message uses few lanes.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lanes: defaultdict[tuple[str, int], list[_Lane]] = defaultdict(list)

    def draw(self, topic: str, slot: int) -> RpcId:
        """Return the id of a new call to a slot."""
        with self._lock:
            lanes = self._lanes[topic, slot]
            lane = next((lane for lane in (*lanes[-1:], *lanes) if lane.next - lane.floor() < OPEN_CALLS), None)
            if lane is None:
                lane = _Lane()
                lanes.append(lane)
            number, lane.next = lane.next, lane.next + 1
            token = _Token(lane, number)
            return RpcId(lane.name, number, lane.floor(), token)
