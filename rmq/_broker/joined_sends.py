"""Puts small sends to several slots into one script call, for servers where a script may touch all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from rmq._broker.binding import Bound, ages_of
from rmq._broker.keys import slot_keys
from rmq._broker.sending import MERGES_AGAIN, NO_MARK, MadeAges, SendCall, message_args
from rmq._io.wire import Argument
from rmq._model.columns import Columns
from rmq._model.messages import Encoded
from rmq._model.replies import SendResult
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType
from rmq._transport.call import Call
from rmq._transport.refusals import error_of
from rmq.errors import RmqError

_ONE, _MANY = Bound("send_priority"), Bound("send_many", durable=MERGES_AGAIN)


class Part(Protocol):
    """Messages of one slot."""

    @property
    def slot(self) -> int:
        """Number of the slot."""
        ...

    @property
    def encoded(self) -> Sequence[Encoded]:
        """The messages."""
        ...


def joins_sends(topic: Topic) -> bool:
    """Return whether sends to several slots of a topic can be one call: not if it merges, drops, or ends in a TTL."""
    aged_out = topic.ttl is not None and not topic.type.timed
    return topic.type is not TopicType.STREAM and topic.merge is None and not topic.drops and not aged_out


class JoinedSends:
    """Builds the joined sends of one topic that `joins_sends`. A call answers for each slot by itself.

    Args:
        topic: The registered definition.
        one: Builds the send to one slot, for errors.
    """

    def __init__(self, topic: Topic, one: SendCall) -> None:
        self._topic, self._one = topic, one
        self._settings: dict[str, Argument] = {"max_backlog": topic.max_backlog_per_slot, "kind": topic.type.value}
        aged = not topic.type.timed and topic.max_priority is not None
        self._settings |= ages_of(topic) if aged else {"scale": 0, "unit_ms": 0}
        self._ages = MadeAges(topic) if aged else None

    def __call__(self, parts: Sequence[Part], detailed: bool = False) -> Call[list[SendResult | RmqError]]:
        """Build one call of sends to different slots.

        Args:
            parts: What to send, a few messages for each slot.
            detailed: Say of each message whether it was new.
        """
        keys: list[str] = []
        sends: list[Argument] = []
        priorities: list[int] = []
        places: list[int] = []  # of the priorities in `sends`
        topic, ages, keys_of = self._topic.name, self._ages, _ONE.keys
        for part in parts:
            keys += keys_of(slot_keys(topic, part.slot))
            columns = Columns.of(part.encoded)
            values = message_args(columns)
            sends += (len(values) + 1, len(columns.contents))
            if ages is not None:
                places += range(len(sends), len(sends) + 2 * len(columns.contents), 2)
                priorities += columns.scores
            sends += values
        mark, built_ms = NO_MARK, monotonic_s() * 1_000
        if ages is not None:
            mark, scores = ages.made(priorities, built_ms)
            for place, score in zip(places, scores, strict=True):
                sends[place] = score
        args = _MANY.args(detailed=int(detailed), mark=mark, sends=sends, **self._settings)
        parse = partial(self._parse, parts, detailed, built_ms)
        return Call(_MANY.name, tuple(keys), args, parse, True, topic, parts[0].slot, _MANY.durable)

    def _parse(
        self, parts: Sequence[Part], detailed: bool, built_ms: float, reply: list[Any]
    ) -> list[SendResult | RmqError]:
        if self._ages is not None:
            self._ages.took(reply[0], built_ms)
        return [self._parse_one(part, detailed, each) for part, each in zip(parts, reply[1:], strict=True)]

    def _parse_one(self, part: Part, detailed: bool, reply: Any) -> SendResult | RmqError:
        if not isinstance(reply, bytes):
            new = int(reply[0])
            outcomes = tuple(flag == 49 for flag in reply[1]) if detailed else ()
            return SendResult(new, len(part.encoded) - new, outcomes)
        return error_of(self._one(part.slot, part.encoded, detailed), reply.decode(errors="replace"))
