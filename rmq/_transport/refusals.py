"""What a server's refusal of a call means to the caller. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from rmq._model.records import NOTHING, Record, before_value, read_record
from rmq._transport.call import Call, T
from rmq._transport.script_library import default_scripts
from rmq.errors import (
    BacklogFullError,
    CallChangedError,
    CollectionFullError,
    EnsembleMismatchError,
    FencedError,
    FixedTimePassedError,
    MemoryFullError,
    ReplyLostError,
    RmqError,
    ScriptFailedError,
    SumOutOfRangeError,
)


def error_of(call: Call[Any], message: str) -> RmqError:
    """Turn an error reply into the error that the caller sees.

    Args:
        call: The call that was refused.
        message: Text of the error reply.
    """
    target = call.target
    code, _, rest = message.removeprefix("ERR ").partition(" ")
    detail = rest.split()
    if code in call.refusals:
        return call.refusals[code](call, detail)
    match code:
        case "RMQ_FENCED" if detail[1:] == ["0"]:
            text = (
                f"{target} is owned through ZooKeeper (epoch {detail[0]}), and this client has none: "
                "give it zookeeper=..., or move the topic away with RmqClient.adopt"
            )
            return call.error(FencedError, text)
        case "RMQ_FENCED":
            text = f"{target} was touched by a newer owner (epoch {detail[0]}); this one's is older"
            fenced = call.error(FencedError, text)
            fenced.epoch = int(detail[0])
            return fenced
        case "RMQ_ENSEMBLE":
            text = f"{target} is owned through ZooKeeper ensemble {detail[0]}, not through this one"
            return call.error(EnsembleMismatchError, f"{text}; RmqClient.adopt moves it over on purpose")
        case "RMQ_PAST":
            return call.error(FixedTimePassedError, _passed(*map(int, reversed(detail))))
        case "RMQ_FULL":
            text = f"{target} holds {detail[0]} messages; its share of max_backlog is {detail[1]}"
            full = call.error(BacklogFullError, text)
            full.room = max(0, int(detail[1]) - int(detail[0]))
            return full
        case "RMQ_ITEMS" | "RMQ_RANGE" | "RMQ_REPEATED" | "RMQ_OTHER":
            return _refused_merge(call, code, rest)
        case _ if call.durable and any(words in message for words in NO_RIGHT_WITHIN):
            # which of its writes came before cannot be told
            return call.error(
                ReplyLostError, f"{call.operation} broke off on {target}, and some of it may be stored: {message}"
            )
        case _ if "OOM command not allowed" in message:
            text = f"Redis is at its maxmemory and stored nothing in {target}; consume, or raise maxmemory"
            return call.error(MemoryFullError, text)
        case _:
            return call.error(ScriptFailedError, f"{call.operation} was refused on {target}: {_explained(message)}")


def _explained(message: str) -> str:
    """Return a refusal with what to do about it; without the arguments that servers repeat."""
    if missing := re.search(r"unknown command ['`](EVALSHA|SCRIPT)['`]", message):
        return f"Redis has no command {missing[1]}; RMQ does all by Lua scripts, and needs EVALSHA and SCRIPT LOAD"
    if any(words in message for words in NO_RIGHT):
        return f"{message}; docs/operate/operations.md lists the rights that RMQ needs"
    return message


def _passed(due_ms: int, now_ms: int | None = None) -> str:
    """Say that a time has passed; one that was refused beside others comes without Redis' time."""
    text = f"fixed_time {due_ms} is in the past" + ("" if now_ms is None else f": Redis' time is {now_ms} ms")
    longest_s = (now_ms or 2 * 10**12) // 100
    return text if due_ms > longest_s else f"{text}; fixed_time is in milliseconds: did you pass seconds?"


def _refused_merge(call: Call[Any], code: str, rest: str) -> RmqError:
    if code == "RMQ_OTHER":
        name = rest.partition(":")[2]
        text = f"once is {name!r}, and the call of that name to {call.target} sent other messages; take another name"
        return call.error(CallChangedError, text)
    number, last = int(rest.split()[0]), rest.split()[-1]
    if code == "RMQ_REPEATED":
        return reply_lost(call, f"its number {number} is no longer remembered, the lowest one is {last}")
    content, record, argument = _refused_message(call, number)
    which = f"message {number} of a call to {call.target}"
    if code == "RMQ_RANGE":
        text = f"{which} adds {record.number} to the sum of {content!r:.80}"
        return call.error(SumOutOfRangeError, f"{text}; a sum must stay within 2^53 - 1, plus or minus")
    items = "1 item that counts" if record.item_count == 1 else f"{record.item_count} items that count"
    text = (
        f"{which} brings {items} {len(record.value) - before_value(record.kind)} bytes, and {content!r:.80} has no "
        f"room: max_items is {argument('max_items')}, max_bytes is {argument('max_bytes')}; consume it first"
    )
    full = call.error(CollectionFullError, text)
    full.room = number - 1
    return full


def _refused_message(call: Call[Any], number: int) -> tuple[bytes, Record, Callable[[str], int]]:
    """Return the content and the record of a message, from 1, of a call; and what returns an argument by its name."""
    names = default_scripts()[call.script].args.required

    def argument(name: str) -> int:
        return int(cast("int", call.args[names.index(name)]))

    contents, records = call.args[len(names) :], call.args[len(names) + argument("number") + argument("values") :]
    record = read_record(cast("bytes", records[min(number, len(records)) - 1]))
    return cast("bytes", contents[number - 1]), record or NOTHING, argument


NO_RIGHT_WITHIN = ("The user executing the script can't", "ACL failure in script")
"""How servers put it where the user has no right to a command or a key within a script: up to Redis 7.0, and later."""

NO_RIGHT = ("NOPERM", *NO_RIGHT_WITHIN)
"""The same, in a script or not."""


AOF_TROUBLE = ": -MISCONF Errors writing to the AOF file"
"""What Redis 6.2 may say between two writes of a script, of which a part is carried out then.

It looks before each write whether the AOF is sound, and another thread finds out that it is not; from 7.0 on it looks
before the first write only.
"""


def reply_lost(call: Call[Any], problem: str) -> ReplyLostError:
    """Return the error for a call of which nobody knows whether it was carried out."""
    return call.error(ReplyLostError, f"the reply to {call.operation} on {call.target} was lost ({problem})")


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
    return call.error(
        ScriptFailedError,
        f"{call.target} holds something that cannot be read: the reply to {call.operation} "
        f"met {type(error).__name__}: {error!s:.200}",
    )
