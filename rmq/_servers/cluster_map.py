"""The slot map of a Redis Cluster: which node serves which hash slot. Pure.

A cluster divides its keys into 16,384 hash slots. All keys of a slot of a topic have the same hash tag, and are
therefore in the same hash slot.
Source: Redis Cluster specification (key hash tags, redirections), CLUSTER SLOTS.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from rmq._servers.urls import Address, parse_address

HASH_SLOTS = 16_384


@lru_cache(maxsize=65_536)
def hash_slot(key: str | bytes) -> int:
    """Return the hash slot of a key: CRC-16/XMODEM of its hash tag, or of the whole key if it has none."""
    return crc_hqx(hash_tag(key.encode() if isinstance(key, str) else key), 0) % HASH_SLOTS


@lru_cache(maxsize=65_536)
def absent_key(key: str) -> str:
    """Return a key in the same hash slot that never exists: the channel of its wakeups.

    While a hash slot is migrating, a server accepts a script if all its keys exist there, but fails it half-way once
    the script uses a key that it has emptied. With a missing key the script is refused before it starts (TRYAGAIN).
    Source: Redis' `getNodeByQuery`, which also checks each command within a script.
    """
    return f"wake{{{hash_tag(key.encode()).decode()}}}"


def hash_tag(name: bytes) -> bytes:
    """Return the part of a key that selects its hash slot."""
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:
            return name[start + 1 : end]
    return name


@dataclass(frozen=True, slots=True)
class Redirect:
    """A node's reply that another node must be asked.

    Attributes:
        hash_slot: The hash slot of the call's key.
        address: The node to ask.
        once: True for ASK, which holds for this call only, while the hash slot is migrating; False for MOVED.
    """

    hash_slot: int
    address: Address
    once: bool


def parse_redirect(message: str, asked: Address) -> Redirect | None:
    """Parse `MOVED 3999 host:port` or `ASK 3999 host:port`; return `None` for another error.

    Args:
        message: Text of the error reply with its code.
        asked: The node that sent it. An empty host means this node's host.
    """
    code, _, rest = message.partition(" ")
    if code not in ("MOVED", "ASK"):
        return None
    number, _, place = rest.partition(" ")
    host, _, port = place.rpartition(":")
    try:
        address = parse_address(host.strip("[]?") or asked.host, port.encode())
        moved = int(number)
    except ValueError:
        return None
    return Redirect(moved, address, code == "ASK") if 0 <= moved < HASH_SLOTS else None


@dataclass(frozen=True, slots=True)
class SlotMap:
    """A cluster's layout as one node sees it.

    Attributes:
        owners: Per hash slot the master that holds it; `None` if no master does.
        masters: All masters that hold hash slots, sorted.
        replicas: Their replicas, sorted.
    """

    owners: tuple[Address | None, ...] = (None,) * HASH_SLOTS
    masters: tuple[Address, ...] = ()
    replicas: tuple[Address, ...] = ()

    def moved(self, redirect: Redirect) -> SlotMap:
        """Return the map as changed by a MOVED redirection."""
        owners = list(self.owners)
        owners[redirect.hash_slot] = redirect.address
        masters = tuple(sorted({*self.masters, redirect.address}))
        return SlotMap(tuple(owners), masters, self.replicas)


def parse_slot_map(reply: object, asked: Address) -> SlotMap:
    """Parse the reply to CLUSTER SLOTS.

    Args:
        reply: Per range: first and last hash slot, the master, its replicas; each node begins with host and port.
        asked: The node that sent it. A missing host means this node's host.

    Raises:
        ValueError: The reply is not a slot map.
    """
    owners: list[Address | None] = [None] * HASH_SLOTS
    masters: set[Address] = set()
    replicas: set[Address] = set()
    for first, last, master, *others in _ranges(reply):
        address = _address(master, asked)
        masters.add(address)
        replicas.update(_address(other, asked) for other in others)
        owners[first : last + 1] = [address] * (last + 1 - first)
    return SlotMap(tuple(owners), tuple(sorted(masters)), tuple(sorted(replicas - masters)))


def _ranges(reply: object) -> Iterator[list[Any]]:
    for entry in _list(reply):
        first, last, *nodes = _list(entry)
        if type(first) is not int or type(last) is not int or not 0 <= first <= last < HASH_SLOTS or not nodes:
            raise ValueError(f"{entry!r:.100} is not a range of hash slots")
        yield [first, last, *nodes]


def _address(node: object, asked: Address) -> Address:
    host, port, *_ = _list(node)
    return parse_address(host if host and host != b"?" else asked.host, port)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.100} is not a list")
    return cast("list[Any]", value)
