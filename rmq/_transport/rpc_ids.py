"""Numbers the sends of a process, so that a repeated one counts once.

Source: RIFL (Lee et al., SOSP 2015): a client numbers its calls, and says with each which is the lowest that it may
still repeat. See docs/internals/merging.md.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from threading import Lock
from typing import NamedTuple

OPEN_CALLS = 32
"""Most numbers of a lane from its lowest open call on: the server keeps and reads the replies of all of them."""


class RpcId(NamedTuple):
    """What names a call for its repeats.

    Attributes:
        lane: The sequence in which it has a number; no other process draws from it, unless the caller named it.
        number: Its number there, from 1.
        floor: The lowest number of the lane that may still be repeated.
        token: Keeps the number open as long as the call lives.
    """

    lane: str
    number: int
    floor: int
    token: object = None


def named_rpc_id(name: str, number: int) -> RpcId:
    """Return the turn of a call that another process may repeat: of its caller's name, and its number from 1.

    The server reads all replies of a lane with each of its calls. So a name has a lane for every `OPEN_CALLS` numbers.
    """
    return RpcId(f"={(number - 1) // OPEN_CALLS}:{name}", number, 0)


def part_rpc_id(rpc_id: RpcId, part: int) -> RpcId:
    """Return the turn of a further part of a call of a caller's name, from 1: a repeat is cut into the same parts."""
    name = rpc_id.lane.partition(":")[2]
    return RpcId(f"={rpc_id.number}.{(part - 1) // OPEN_CALLS}:{name}", part, 0)


class _Lane:
    """A sequence of numbers, of which those of living calls are open."""

    __slots__ = ("name", "next", "open")

    def __init__(self) -> None:
        self.name = secrets.token_urlsafe(9)
        self.next = 1
        self.open: set[int] = set()

    def floor(self) -> int:
        """Return the lowest open number, the next one where none is open."""
        return min(self.open.copy(), default=self.next)


class _Token:
    """Closes its number when its call is gone, whatever became of it: then nobody can repeat it."""

    __slots__ = ("_lane", "_number")

    def __init__(self, lane: _Lane, number: int) -> None:
        self._lane, self._number = lane, number
        lane.open.add(number)

    def __del__(self) -> None:
        self._lane.open.discard(self._number)


class RpcIdAllocator:
    """Draws the turns of a client's calls. Thread-safe.

    All producers of a client draw from the same lanes: who makes a producer for each message leaves few on the server.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lanes: defaultdict[tuple[str, int], list[_Lane]] = defaultdict(list)

    def draw(self, topic: str, slot: int) -> RpcId:
        """Return the turn of a new call to a slot."""
        with self._lock:
            lanes = self._lanes[topic, slot]
            lane = next((lane for lane in (*lanes[-1:], *lanes) if lane.next - lane.floor() < OPEN_CALLS), None)
            if lane is None:
                lane = _Lane()
                lanes.append(lane)
            number, lane.next = lane.next, lane.next + 1
            token = _Token(lane, number)
            return RpcId(lane.name, number, lane.floor(), token)
