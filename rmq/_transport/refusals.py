"""What a server's refusal of a call means to the caller. Pure."""

from __future__ import annotations

from typing import Any

from rmq._transport.call import Call, T
from rmq.errors import (
    BacklogFullError,
    EnsembleMismatchError,
    FencedError,
    FixedTimePassedError,
    MemoryFullError,
    ReplyLostError,
    RmqError,
    ScriptFailedError,
)


def error_of(call: Call[Any], message: str) -> RmqError:
    """Turn an error reply into the error that the caller sees.

    Args:
        call: The call that was refused.
        message: Text of the error reply.
    """
    topic, slot = call.topic, call.slot
    place = call.place
    code, _, rest = message.removeprefix("ERR ").partition(" ")
    detail = rest.split()
    if code in call.refusals:
        return call.refusals[code](call, detail)
    match code:
        case "RMQ_FENCED" if detail[1:] == ["0"]:
            return FencedError(
                f"{place} is owned through ZooKeeper (epoch {detail[0]}), and this client has none: "
                "give it zookeeper=..., or move the topic away with RmqClient.adopt",
                topic=topic,
                slot=slot,
            )
        case "RMQ_FENCED":
            return FencedError(
                f"{place} was touched by a newer owner (epoch {detail[0]}); this one's is older",
                topic=topic,
                slot=slot,
                epoch=int(detail[0]),
            )
        case "RMQ_ENSEMBLE":
            return EnsembleMismatchError(
                f"{place} is owned through ZooKeeper ensemble {detail[0]}, not through this one; "
                "RmqClient.adopt moves it over on purpose",
                topic=topic,
                slot=slot,
            )
        case "RMQ_PAST":
            return FixedTimePassedError(
                f"fixed_time {detail[1]} does not lie ahead of Redis' time, {detail[0]} ms", topic=topic, slot=slot
            )
        case "RMQ_FULL":
            full = BacklogFullError(
                f"{place} holds {detail[0]} messages; its share of max_backlog is {detail[1]}", topic=topic, slot=slot
            )
            full.room = max(0, int(detail[1]) - int(detail[0]))
            return full
        case _ if call.durable and any(
            words in message for words in _NO_RIGHT_WITHIN
        ):  # which of its writes came before cannot be told
            return ReplyLostError(
                f"{call.what} broke off on {place}, and some of it may be stored: {message}",
                topic=topic,
                slot=slot,
            )
        case _ if "OOM command not allowed" in message:
            return MemoryFullError(
                f"Redis is at its maxmemory and stored nothing in {place}; consume, or raise maxmemory",
                topic=topic,
                slot=slot,
            )
        case _:
            return ScriptFailedError(f"{call.what} was refused on {place}: {message}", topic=topic, slot=slot)


_NO_RIGHT_WITHIN = "The user executing the script can't", "ACL failure in script"
"""How servers put it where the user has no right to a command or a key within a script: Redis, Redis 7 and Valkey."""


AOF_TROUBLE = ": -MISCONF Errors writing to the AOF file"
"""What Redis 6.2 may say between two writes of a script, of which a part is carried out then.

It looks before each write whether the AOF is sound, and another thread finds out that it is not; from 7.0 on it looks
before the first write only.
"""


def reply_lost(call: Call[Any], trouble: str) -> ReplyLostError:
    """Return the error for a call of which nobody knows whether it was carried out."""
    return ReplyLostError(
        f"the reply to {call.what} on {call.place} was lost ({trouble})",
        topic=call.topic,
        slot=call.slot,
    )


def parsed(call: Call[T], reply: Any) -> T:
    """Return the value of a reply.

    Raises:
        ScriptFailedError: A key of the slot holds something that RMQ has not written.
    """
    try:
        return call.parse(reply)
    except UNREADABLE as error:
        raise unreadable(call, error) from error


UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What parsing a reply meets where a key of the slot holds something that RMQ has not written."""


def unreadable(call: Call[Any], error: Exception) -> RmqError:
    """Return the error for a reply that cannot be parsed: one of RMQ's own stays as it is."""
    if isinstance(error, RmqError):
        return error
    return ScriptFailedError(
        f"{call.place} holds something that cannot be read: the reply to {call.what} "
        f"met {type(error).__name__}: {error!s:.200}",
        topic=call.topic,
        slot=call.slot,
    )
