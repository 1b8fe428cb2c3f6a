"""Converts error replies of a server to the errors that callers see. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from rmq._model.records import Record, before_value, read_record
from rmq._transport.call import Call
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
    TopicDeletedError,
)


def error_of(call: Call[Any], message: str) -> RmqError:
    """Convert an error reply to the caller's error.

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
                f"{target} has an owner (epoch {detail[0]}), and this client owns no slots: give it the owners=... or "
                "zookeeper=... of the topic's workers, or move the topic away with RmqClient.adopt"
            )
            return call.error(FencedError, text)
        case "RMQ_FENCED":
            text = f"{target} was changed by a newer owner (epoch {detail[0]}); this owner's epoch is older"
            fenced = call.error(FencedError, text)
            fenced.epoch = int(detail[0])
            return fenced
        case "RMQ_ENSEMBLE":
            text = f"{target} is owned through ensemble {detail[0]}, not through this one"
            return call.error(EnsembleMismatchError, f"{text}; RmqClient.adopt moves it to this client's ensemble")
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
            # it is unknown how many of its writes were executed before the error
            return call.error(
                ReplyLostError, f"{call.operation} was aborted on {target} and may be partly stored: {message}"
            )
        case _:
            return _refused(call, message)


def _refused(call: Call[Any], message: str) -> RmqError:
    """Convert the refusal of a command within a script: nothing was written."""
    store = f"{call.topic}_{call.slot}"
    if "OOM command not allowed" in message:
        text = f"Redis is at its maxmemory and stored nothing in {call.target}; consume messages or raise maxmemory"
        return call.error(MemoryFullError, text)
    refused = f"{call.operation} was refused on {call.target}"
    if "WRONGTYPE" in message and store in call.keys:
        text = (
            f"{refused}: the topic was deleted, or another program has written the key {store} ({message}). If the "
            f"registry was lost since the topic was deleted, `rmq topics delete {call.topic}` and a restart free it"
        )
        return call.error(TopicDeletedError, text)
    return call.error(ScriptFailedError, f"{refused}: {_explained(message)}")


def _explained(message: str) -> str:
    """Return the text of a refusal with advice, without the arguments that servers repeat."""
    if missing := re.search(r"unknown command ['`](EVALSHA|SCRIPT)['`]", message):
        return f"Redis has no command {missing[1]}; RMQ uses Lua scripts and needs EVALSHA and SCRIPT LOAD"
    if any(words in message for words in NO_RIGHT):
        return f"{message}; docs/operate/operations.md lists the permissions that RMQ needs"
    return message


def _passed(due_ms: int, now_ms: int | None = None) -> str:
    """Return the error text for a time in the past. Redis' time is unknown if other messages were stored."""
    text = f"fixed_time {due_ms} is in the past" + ("" if now_ms is None else f": Redis' time is {now_ms} ms")
    longest_s = (now_ms or 2 * 10**12) // 100
    return text if due_ms > longest_s else f"{text}; fixed_time is in milliseconds: did you pass seconds?"


def _refused_merge(call: Call[Any], code: str, rest: str) -> RmqError:
    if code == "RMQ_OTHER":
        name = rest.partition(":")[2]
        text = (
            f"once is {name!r}, but an earlier call of that name to {call.target} sent other messages; use another name"
        )
        return call.error(CallChangedError, text)
    number, last = int(rest.split()[0]), rest.split()[-1]
    if code == "RMQ_REPEATED":
        return reply_lost(call, f"Redis no longer keeps the reply to call {number}; it keeps those from call {last} on")
    content, record, rules = _refused_message(call, number)
    which = f"message {number} of a call to {call.target}"
    if code == "RMQ_RANGE":
        text = f"{which} adds {record.number} to the sum of {content!r:.80}"
        return call.error(SumOutOfRangeError, f"{text}; a sum must be from -(2^53 - 1) to 2^53 - 1")
    items = "1 item that counts" if record.item_count == 1 else f"{record.item_count} items that count"
    text = (
        f"{which} adds {items} {len(record.value) - before_value(record.kind)} bytes, but {content!r:.80} is full: "
        f"max_items is {rules['max_items']}, max_bytes is {rules['max_bytes']}; consume it first"
    )
    full = call.error(CollectionFullError, text)
    full.room = number - 1
    return full


def _refused_message(call: Call[Any], number: int) -> tuple[bytes, Record, dict[str, Any]]:
    """Return the content and record of message `number`, from 1, and how its topic merges."""
    names = default_scripts()[call.script].args.required

    sent, values, rules = (call.args[names.index(name)] for name in ("number", "values", "rules"))
    contents, records = call.args[len(names) :], call.args[len(names) + int(sent) + int(values) :]
    record = read_record(cast("bytes", records[min(number, len(records)) - 1]))
    return cast("bytes", contents[number - 1]), record, json.loads(str(rules))


NO_RIGHT_WITHIN = ("The user executing the script can't", "ACL failure in script")
"""Errors of a script whose user lacks the permission for a command or key: up to Redis 7.0, and in later versions."""

NO_RIGHT = ("NOPERM", *NO_RIGHT_WITHIN)
"""The same errors, also outside scripts."""


def reply_lost(call: Call[Any], problem: str) -> ReplyLostError:
    """Return the error for a call that may or may not have been executed."""
    return call.error(ReplyLostError, f"the reply to {call.operation} on {call.target} was lost ({problem})")


UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of parsing a reply if a key of the slot has a value that RMQ did not write."""


def unreadable(call: Call[Any], error: Exception) -> RmqError:
    """Return the error for a reply that cannot be parsed. An `RmqError` is returned unchanged."""
    if isinstance(error, RmqError):
        return error
    text = f"the reply to {call.operation} raised {type(error).__name__}: {error!s:.200}"
    found = call.error(ScriptFailedError, f"{call.target} has a value that RMQ cannot read: {text}")
    found.__cause__ = error
    return found
