"""The column `claim`, which identifies a row's chunk, and the call of the script that stores refusals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rmq._broker.binding import BoundScript
from rmq._broker.keys import query_keys
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq.errors import InvalidValueError
from rmq.spark.calls import CHUNK, KEEP_S, REFUSALS, Claim, Driver

_REFUSE = BoundScript("spark_refuse", REFUSALS)
_CLAIM = re.compile("([0-9a-f]{32}):([0-9]{1,15}):([0-9]{1,15}):([0-9]{1,9})")


class How(NamedTuple):
    """The treatment of refused messages, with the reason.

    Attributes:
        delay_ms: Delay until their retry; `None` makes them dead messages.
        error_type: Type of the error, e.g. `ValueError`; may be empty.
        error_message: Message of the error, at most 1,000 characters.
    """

    delay_ms: int | None
    error_type: str
    error_message: str


class Refused(NamedTuple):
    """The result of a refusal.

    Attributes:
        noted: Number of rows that the ack of their batch will exclude.
        missing: Number of rows that are not in their batch.
    """

    noted: int
    missing: int


def read_claim(text: str) -> Claim:
    """Parse a value of the column `claim`.

    Raises:
        InvalidValueError: The text is not a value of the column `claim`.
    """
    found = _CLAIM.fullmatch(text)
    if found is None:
        raise InvalidValueError(
            f"claim is {text!r:.100}; it must be a value of the column claim of readStream, unchanged"
        )
    return Claim(Driver(found[1], int(found[2])), int(found[3]), int(found[4]))


def refuse_contents(topic: Topic, slot: int, claim: Claim, how: How, contents: Sequence[bytes]) -> Call[Refused]:
    """Return a call that stores the refusal of up to `CHUNK` messages of a chunk."""

    def parse(reply: list[bytes]) -> Refused:
        return Refused(*map(int, reply))

    return _REFUSE.call(
        topic,
        slot,
        parse,
        keys={"query": query_keys(topic.name, slot, claim.driver.query).query},
        generation=claim.driver.generation,
        seq=claim.seq,
        chunk=claim.chunk,
        verb="bury" if how.delay_ms is None else "back",
        delay_ms=how.delay_ms or 0,
        error_type=how.error_type,
        error_message=how.error_message,
        keep_s=KEEP_S,
        contents=contents[:CHUNK],
    )
