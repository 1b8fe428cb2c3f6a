"""What names a chunk of a streaming query's batch in its rows, and the script that notes which of them are refused."""

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
    """What becomes of messages that are refused, and why.

    Attributes:
        delay_ms: They come back after this time; `None`: they die.
        error_type: Why, e.g. `ValueError`; may be empty.
        error_message: Why, in words, at most 1,000 characters.
    """

    delay_ms: int | None
    error_type: str
    error_message: str


class Refused(NamedTuple):
    """What came of a refusal.

    Attributes:
        noted: Rows that the ack of their batch leaves out.
        missing: Rows that their batch does not hold.
    """

    noted: int
    missing: int


def read_claim(text: str) -> Claim:
    """Read a value of the column `claim`.

    Raises:
        InvalidValueError: It is none.
    """
    found = _CLAIM.fullmatch(text)
    if found is None:
        raise InvalidValueError(f"claim is {text!r:.100}; it must be the column claim of readStream, as it was read")
    return Claim(Driver(found[1], int(found[2])), int(found[3]), int(found[4]))


def refuse_contents(topic: Topic, slot: int, claim: Claim, how: How, contents: Sequence[bytes]) -> Call[Refused]:
    """Build the refusal of up to `CHUNK` messages of a chunk."""

    def parse(reply: list[bytes]) -> Refused:
        return Refused(*map(int, reply))

    args = _REFUSE.args(
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
    return _REFUSE.call(topic, slot, parse, args, query=query_keys(topic.name, slot, claim.driver.query).query)
