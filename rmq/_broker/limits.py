"""The script for rate limits."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._broker.binding import Bound
from rmq._broker.keys import group_rate_key, rate_key
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one

_TAKE_TOKENS = Bound("take_tokens", repeatable=False)

Tokens = tuple[int, float, float, bool]
"""How many were granted, seconds until it is worth asking again, the rate (0: no limit), whether the bucket is new."""


def take_tokens(topic: Topic, wanted: int, group: str | None = None) -> Call[Tokens]:
    """Build the taking of tokens of a topic's limit, or, with a number below 0, their giving back.

    Each group of a stream topic has the whole rate for itself.
    """
    limit = rate_key(topic.name)
    bucket = limit if group is None else group_rate_key(topic.name, group)
    return take_from(limit, bucket, topic, wanted, topic.max_rate or 0, topic.rate_burst)


def take_from(limit: str, bucket: str, topic: Topic, wanted: int, per_second: float, burst: int) -> Call[Tokens]:
    """Build the taking of tokens from any bucket; rate and burst count where the limit says nothing yet."""

    def parse(reply: Sequence[bytes]) -> Tokens:
        return int(reply[0]), int(reply[1]) / 1000, float(reply[2]), is_one(reply[3])

    args = _TAKE_TOKENS.args(wanted=wanted, rate=repr(per_second), burst=burst)
    return _TAKE_TOKENS.call(topic, 0, parse, args, limit=limit, bucket=bucket)
