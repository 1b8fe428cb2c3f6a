"""The scripts that tell of the dead."""

from __future__ import annotations

from typing import Any

from rmq._broker.binding import Bound
from rmq._broker.dead import dead_page
from rmq._broker.streams import dead_entries
from rmq._model.entries import DeadEntry
from rmq._model.notices import Turn, Untold, untold_of
from rmq._model.topics import Topic
from rmq._model.whereabouts import DeadMessage
from rmq._transport.call import Call

_UNTOLD, _STREAM_UNTOLD = Bound("untold_dead"), Bound("stream_untold_dead")


def untold(topic: Topic, slot: int, turn: Turn, limit: int) -> Call[Untold[DeadMessage]]:
    """Build the reading of a slot's next dead of whom nobody was told; it notes up to where that has been done."""

    def parse(reply: list[Any]) -> Untold[DeadMessage]:
        return untold_of(int(reply[0]), dead_page(topic, slot, *reply[1:]))

    return _UNTOLD.call(topic, slot, parse, _UNTOLD.args(**turn.args(), limit=limit))


def untold_entries(topic: Topic, slot: int, group: str, turn: Turn, limit: int) -> Call[Untold[DeadEntry]]:
    """Build the same for the dead of a group of a stream topic."""

    def parse(reply: list[Any]) -> Untold[DeadEntry]:
        return untold_of(int(reply[0]), dead_entries(topic, slot, group, reply[1]))

    return _STREAM_UNTOLD.call(topic, slot, parse, _STREAM_UNTOLD.args(**turn.args(), limit=limit), group=group)
