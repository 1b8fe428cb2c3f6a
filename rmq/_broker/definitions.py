"""The scripts for the definitions of topics."""

from __future__ import annotations

from collections.abc import Sequence

from rmq._broker.binding import SAFE_AGAIN, Bound
from rmq._broker.keys import TOPICS_KEY
from rmq._model.definitions import MAX_DEFINITION_BYTES
from rmq._transport.call import Call, is_one

_READ, _DEFINE = Bound("registry_read"), Bound("registry_define", durable=SAFE_AGAIN)


def read(names: Sequence[bytes]) -> Call[list[bytes | int | None]]:
    """Build the reading of definitions by name: the text of each, its length where it is too long, or `None`.

    The answer is shorter than `names` where they are long: the rest is left to further calls.
    """
    args = _READ.args(most_bytes=MAX_DEFINITION_BYTES, names=names)
    return Call(_READ.name, _READ.names(topics=TOPICS_KEY), args, list, True, TOPICS_KEY, 0)


def define(topic: str, expected: bytes, text: bytes, *, durable: bool) -> Call[bool]:
    """Build the writing of a definition where the expected one is; answers whether it was."""
    args = _DEFINE.args(name=topic, expected=expected, text=text)
    confirmed = _DEFINE.durable if durable else ""
    return Call(_DEFINE.name, _DEFINE.names(topics=TOPICS_KEY), args, is_one, True, topic, 0, confirmed)
