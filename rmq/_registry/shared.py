"""Calls of the scripts on keys that do not belong to a slot: the list of workers, rate limits, locks, owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._broker.keys import OWNERS_KEYS, WORKER_INFOS_KEY, WORKERS_KEY, group_rate_key, rate_key
from rmq._io.wire import Argument
from rmq._model.topics import Topic
from rmq._transport.call import Call, is_one, plain

_BEAT = BoundScript("worker_beat")

REPORT_KEYS = {"beats": WORKERS_KEY, "infos": WORKER_INFOS_KEY}
"""Keys of the reports of workers, by the names in the headers of their scripts."""

MOST_WORKERS = 1_000


def worker_beat(name: str, info: str, forget_ms: int) -> Call[int]:
    """Return a call that sends a heartbeat; its result is Redis' time, ms. An empty `info` removes the worker."""
    return _BEAT.call_on(WORKERS_KEY, int, REPORT_KEYS, name=name, info=info, forget_ms=forget_ms, most=MOST_WORKERS)


def worker_beat_again(name: str, now_ms: int) -> Call[int]:
    """Return a call that sends a heartbeat with an unchanged report; its result is 0 if the report is missing.

    Args:
        name: Name of the worker.
        now_ms: Redis' time, as far as known, epoch ms.
    """
    return plain("ZADD", WORKERS_KEY, "XX", "CH", now_ms, name)


_TAKE_TOKENS = BoundScript("take_tokens", repeatable=False)

Tokens = tuple[int, float, float, bool]
"""Tokens granted, seconds until there may be more, the rate (0: no limit), and whether the bucket is new."""


def take_tokens(topic: Topic, wanted: int, group: str | None = None) -> Call[Tokens]:
    """Return a call that takes tokens from a topic's rate limit; a negative number returns tokens.

    Each group of a stream topic has the whole rate.
    """
    limit = rate_key(topic.name)
    bucket = limit if group is None else group_rate_key(topic.name, group)
    return take_from(limit, bucket, topic, wanted, topic.max_rate or 0, topic.rate_burst)


def take_from(limit: str, bucket: str, topic: Topic, wanted: int, per_second: float, burst: int) -> Call[Tokens]:
    """Return a call that takes tokens from any bucket; rate and burst apply if the bucket does not exist yet."""

    def parse(reply: Sequence[bytes]) -> Tokens:
        return int(reply[0]), int(reply[1]) / 1000, float(reply[2]), is_one(reply[3])

    keys = {"limit": limit, "bucket": bucket}
    return _TAKE_TOKENS.call(topic, 0, parse, keys=keys, wanted=wanted, rate=repr(per_second), burst=burst)


_LOCK = BoundScript("take_lock")


class Lock(NamedTuple):
    """The state of a lock with an expiry.

    Attributes:
        holder: Name of the holder; empty if the lock is free.
        till_ms: The end of the holder's time, epoch ms.
        now_ms: Redis' time, epoch ms.
    """

    holder: str
    till_ms: int
    now_ms: int


def take_lock(
    key: str, field: str, holder: str, hold_ms: int, how: Literal["take", "keep", "period"] = "take"
) -> Call[Lock]:
    """Return a call that takes, keeps or ends a lock with an expiry, see `lua/shared/take_lock.lua`. Safe to repeat."""

    def parse(reply: Sequence[bytes]) -> Lock:
        return Lock(reply[0].decode(), int(reply[1]), int(reply[2]))

    return _LOCK.call_on("", parse, {"lock": key}, field=field, holder=holder, hold_ms=hold_ms, how=how)


_KEEPER = BoundScript("keeper", repeatable=False, durable=SAFE_AGAIN)


class KeeperReply(NamedTuple):
    """The reply of a call to the nodes of owners; see `lua/shared/keeper.lua`.

    Attributes:
        session: The session; 0 if it has ended.
        number: Number of the last transaction.
        era: Changes when Redis was found to have lost transactions.
        answers: The answer to each request; `None` if the session has ended, or nothing has changed.
    """

    session: int
    number: int
    era: int
    answers: Sequence[Any] | None


def keep_nodes(
    session: int, timeout_ms: int, requests: Sequence[Argument], known: int, unless: int, *, changes: bool
) -> Call[KeeperReply]:
    """Return a call that carries out requests of a session; see `lua/shared/keeper.lua`. `changes`: not only reads."""

    def parse(reply: Sequence[Any]) -> KeeperReply:
        own, number, era, *answers = reply
        return KeeperReply(int(own), int(number), int(era), answers[0] if answers else None)

    numbers: dict[str, Any] = {"session": session, "timeout_ms": timeout_ms, "known": known, "unless": unless}
    call = _KEEPER.call_on(OWNERS_KEYS["nodes"], parse, OWNERS_KEYS, **numbers, requests=requests)
    return call if changes else call._replace(durable="")
