"""Every name that RMQ uses in Redis, built in this one place.

All keys of a slot carry the store's name as their hash tag, so that one Redis Cluster node holds them all.
A topic's name has no brace, which would move the tag (`a{b}c_0` and `prepare{a{b}c_0}` hash apart).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

TOPICS_KEY = "rmq:topics"
"""HASH: topic -> its definition as JSON."""

WORKERS_KEY = "rmq:{workers}"
"""ZSET: worker -> time of its last heartbeat, ms."""

WORKER_INFOS_KEY = "rmq:{workers}:info"
"""HASH: worker -> its report, JSON."""

REDIS_KEY = "rmq:{workers}:redis"
"""STRING: identity of this Redis, a random UUID, by which workers with owners check that they share it."""

ENSEMBLES_KEY = "rmq:{workers}:ensembles"
"""ZSET: identity of an ensemble -> the highest of its epochs that was used here."""

_OWNERS = ("nodes", "tree", "held", "sessions", "timeouts", "state", "wake")
OWNERS_KEYS = {name: f"rmq:{{owners}}:{name}" for name in _OWNERS}
"""Owners of slots without ZooKeeper: names in the header of `lua/shared/keeper.lua` -> keys; the last is a channel."""

HISTORY_LOCK_KEY = "rmq:history-lock"
"""HASH: the process that has set out to record the current minute, and its end, see `lua/shared/take_lock.lua`."""

RECURRING_TOPIC = "rmq.recurring"
"""Name of the topic of the schedules."""

SCHEDULE_RUNS_KEY = f"runs{{{RECURRING_TOPIC}_0}}"
"""HASH: schedule -> the last due time that was sent and when, epoch ms, or empty; `NAME/asked`: see `run_now`."""

SCHEDULE_LOCK_KEY = f"lock{{{RECURRING_TOPIC}_0}}"
"""HASH: who puts a schedule, and until when, see `lua/shared/take_lock.lua`; there only meanwhile."""


@dataclass(frozen=True, slots=True)
class SlotKeys:
    """The keys of one slot of one topic.

    Attributes:
        store: ZSET content -> score: the backlog.
        prepare: ZSET content -> claim score: in flight.
        retry: ZSET content -> retry score: failed, waiting for a retry.
        dead: ZSET content -> time of death, ms.
        body: HASH content -> body of a message that is not dead; on topics that merge, record of one in store.
        meta: HASH: owner's epoch and ensemble, paused, totals.
        error: HASH content -> JSON: the last failure of a message that is not dead.
        reason: HASH content -> JSON: the failure of a dead message.
        dead_body: HASH content -> body of a dead message.
        wake: channel: a hint that the slot is due earlier than before.
        born: ZSET content -> time of its last send, ms; only on PRIORITY topics with a time to live.
        audit: STREAM: control actions on this slot, the last thousand lines.
        sizes: HASH, only on stream topics: how long the stream was at the last shrinking.
        held: HASH content -> record of a message in flight, or waiting for a retry; only on topics that merge.
        marks: HASH lane -> replies of calls that may be repeated; only on topics that merge; unused, it expires.
        cool: ZSET content -> end of its window, ms; only on topics with a leading window; it expires.
    """

    store: str
    prepare: str
    retry: str
    dead: str
    body: str
    meta: str
    error: str
    reason: str
    dead_body: str
    wake: str
    born: str
    audit: str
    sizes: str
    held: str
    marks: str
    cool: str


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of one group on one slot of a stream topic, and the slot's keys that the group's scripts take.

    Attributes:
        store: STREAM: the entries.
        meta: HASH: the slot's totals.
        wake: channel: the slot's.
        group: HASH: owner's epoch and ensemble, paused, state of the pass over the pending list, totals.
        retry: ZSET padded id -> due ms: entries waiting for a retry.
        dead: ZSET id -> time of death, ms.
        error: HASH id -> JSON: the last failure of a pending entry.
        reason: HASH id -> JSON: the failure of a dead entry.
        dead_body: HASH id -> packed fields of a dead entry.
    """

    store: str
    meta: str
    wake: str
    group: str
    retry: str
    dead: str
    error: str
    reason: str
    dead_body: str


@dataclass(frozen=True, slots=True)
class QueryKeys:
    """The keys of one streaming query on one slot; unused, they expire.

    Attributes:
        query: HASH: generation of the driver, number of the last acked batch, chunks of the running one.
        body: HASH content -> body as it was claimed for the running batch.
    """

    query: str
    body: str


@lru_cache(maxsize=65_536)
def slot_keys(topic: str, slot: int) -> SlotKeys:
    """Return the names of a slot's keys: `prepare{topic_0}`, `deadbody{topic_0}` and so on.

    Args:
        topic: A valid topic name.
        slot: Number of the slot, from 0.
    """
    store = f"{topic}_{slot}"
    return SlotKeys(store, *(f"{each.name.replace('_', '')}{{{store}}}" for each in fields(SlotKeys)[1:]))


@lru_cache(maxsize=65_536)
def group_keys(topic: str, slot: int, group: str) -> GroupKeys:
    """Return the names of a group's keys on a slot of a stream topic: `retry:group{topic_0}` and so on.

    Args:
        topic: A valid topic name.
        slot: Number of the slot, from 0.
        group: A valid group name: no colon in it.
    """
    common = slot_keys(topic, slot)
    own = (f"{each.name.replace('_', '')}:{group}{{{common.store}}}" for each in fields(GroupKeys)[3:])
    return GroupKeys(common.store, common.meta, common.wake, *own)


@lru_cache(maxsize=65_536)
def query_keys(topic: str, slot: int, query: str) -> QueryKeys:
    """Return the names of a streaming query's keys on a slot.

    Args:
        topic: A valid topic name.
        slot: Number of the slot, from 0.
        query: Identity of the query, letters and digits.
    """
    tag = f"{{{topic}_{slot}}}"
    return QueryKeys(query=f"spark:{query}{tag}", body=f"sparkbody:{query}{tag}")


def sent_key(topic: str, slot: int, query: str) -> str:
    """Return the key of the HASH of the chunks that a streaming query has sent to a slot; unused, it expires."""
    return f"sent:{query}{{{topic}_{slot}}}"


def spark_queries_key(topic: str) -> str:
    """Return the key of the HASH of Spark queries' reports on a topic; it expires a day after the last report."""
    return f"sparkqueries{{{topic}_0}}"


def rate_key(topic: str) -> str:
    """Return the key of the HASH of a topic's rate limit: rate and burst, tokens, and the time of their count."""
    return f"rate:{topic}"


def group_rate_key(topic: str, group: str) -> str:
    """Return the key of the HASH of a stream group's tokens, in the hash slot of `rate_key`."""
    return f"{{{rate_key(topic)}}}@{group}"


def write_rate_key(topic: str, name: str) -> str:
    """Return the key of the HASH of a Spark write's rate limit, with the number of messages sent; it expires."""
    return f"{rate_key(topic)}:{name}"


def history_key(topic: str | None) -> str:
    """Return the key of the LIST of a topic's records, one per minute; `None` is for the sum of all topics."""
    return "rmq:history" if topic is None else f"rmq:history:{topic}"


def sample_commands(topic: str, sharded: bool) -> list[Sequence[str]]:
    """Return a command of each kind that RMQ runs, with the keys of a topic; `sharded`: hints by SPUBLISH."""
    keys = slot_keys(topic, 0)
    publish = "SPUBLISH" if sharded else "PUBLISH"
    return [
        ("SCRIPT", "LOAD", "return 1"),
        ("EVALSHA", "0" * 40, "1", keys.store),
        ("HGET", TOPICS_KEY, topic),
        ("HSETNX", TOPICS_KEY, topic, "x"),
        ("ZADD", WORKERS_KEY, "1", "x"),
        *(("ZADD", key, "1", "x") for key in (keys.store, keys.prepare, keys.retry, keys.dead)),
        *(("HSET", key, "x", "1") for key in (keys.body, keys.meta, keys.error, keys.reason, keys.dead_body)),
        ("ZREM", keys.store, "x"),
        ("HDEL", keys.body, "x"),
        ("XADD", keys.audit, "*", "x", "1"),
        ("EXPIRE", keys.meta, "1"),
        ("UNLINK", keys.store),
        ("TIME",),
        (publish, keys.wake, "x"),
        ("SSUBSCRIBE" if sharded else "SUBSCRIBE", keys.wake),
    ]
