"""The scripts that record the history."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._broker.binding import Bound
from rmq._broker.keys import HISTORY_TURN_KEY, history_key
from rmq._transport.call import Call, is_one

_TURN, _WRITE = Bound("history_turn"), Bound("history_write")


def take_turn(keep_s: int) -> Call[tuple[int, int | None]]:
    """Build the taking of this minute's turn; answers Redis' time, ms, and the minute, `None` where it is taken."""

    def parse(reply: Sequence[bytes]) -> tuple[int, int | None]:
        return int(reply[0]), int(reply[1]) or None

    return Call(_TURN.name, _TURN.names(turn=HISTORY_TURN_KEY), _TURN.args(keep_s=keep_s), parse, False, "", 0)


def append(topic: str | None, minute: int, record: bytes, most: int, keep_s: int) -> Call[bool]:
    """Build the appending of a record to a ring of `most`; answers whether it was new."""
    keys = _WRITE.names(ring=history_key(topic))
    args = _WRITE.args(minute=minute, record=record, most=most, keep_s=keep_s)
    return Call(_WRITE.name, keys, args, is_one, True, topic or "", 0)
