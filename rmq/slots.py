"""Which slot a message belongs to.

Source: CRC-32/ISO-HDLC, the value of `zlib.crc32`, Java's `java.util.zip.CRC32` and Spark SQL's `crc32`.
"""

from __future__ import annotations

from zlib import crc32

MAX_SLOTS = 16_384
"""As many as Redis Cluster has hash slots: more would not spread any further."""


def slot_of(basis: bytes, slots: int) -> int:
    """Return the slot, 0 to `slots` - 1, of a message.

    Args:
        basis: The message's slot basis, or its content where none was given.
        slots: The topic's number of slots, a power of two.
    """
    return crc32(basis) & (slots - 1)
