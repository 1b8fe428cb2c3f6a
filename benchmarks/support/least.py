"""The least scripts: what one script call for a batch costs at least, if it keeps the promises and does nothing else.

A send counts what it accepts. A claim reads who may claim, acks the claim before if all of it is still there, and puts
what it takes into prepare before it takes it out of store. There is no bound on bytes, no retry, no lease that ends, no
pause, no body, no backlog limit, no hint, and no check of types: each call finds what it expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from benchmarks.support import native
from benchmarks.support.loads import BATCH, batches
from rmq import TopicType

_SEND = """
redis.call('HINCRBY', KEYS[3], 'accepted', #ARGV / 2)
return redis.call('ZADD', KEYS[1], {option}unpack(ARGV))
"""
_CLAIM = """
local store, prepare, meta = KEYS[1], KEYS[2], KEYS[3]
redis.call('HMGET', meta, 'epoch', 'ensemble', 'paused', 'stamp')
if redis.call('ZCOUNT', prepare, ARGV[1], ARGV[1]) == tonumber(ARGV[4]) then
  redis.call('ZREMRANGEBYSCORE', prepare, ARGV[1], ARGV[1])
end
local page = redis.call({read}, 'WITHSCORES'{limit})
local size, fresh = #page / 2, ARGV[2]
if size == 0 then
  return page
end
local claims = {{ fresh, unpack(page, 1, 2 * size - 1) }}
for i = 3, 2 * size - 1, 2 do
  claims[i] = fresh
end
redis.call('ZADD', prepare, 'NX', unpack(claims))
redis.call('ZREMRANGEBYRANK', store, {ranks})
redis.call('HSET', meta, 'stamp', fresh, 'delivered', size, 'acked', ARGV[4])
return page
"""
_HIGHEST = {"read": "'ZREVRANGE', store, 0, ARGV[3] - 1", "limit": "", "ranks": "-size, -1"}
_DUE = {
    "read": "'ZRANGEBYSCORE', store, '-inf', '9e15'",
    "limit": ", 'LIMIT', 0, ARGV[3]",
    "ranks": "0, size - 1",
}
_FIRST_CLAIM = 1_800_000_000_000_016


def life(client: Any, kind: TopicType, contents: Sequence[bytes], scores: Sequence[int], slots: int) -> native.Life:
    """Encode a load in calls of the least scripts, which are loaded into the server; slots take turns.

    Args:
        client: The server's redis-py client.
        kind: Of which type of topic the order is, and whether a content in store stays as it is.
        contents: What is sent.
        scores: Its scores in store.
        slots: Over how many sets.
    """
    claim = _CLAIM.format(**(_DUE if kind.timed else _HIGHEST))
    option = "'NX', " if kind is TopicType.RANGE_MERGE else ""
    send_sha, claim_sha = (client.script_load(text) for text in (_SEND.format(option=option), claim))
    parts = [_slot(send_sha, claim_sha, slot, contents[slot::slots], scores[slot::slots]) for slot in range(slots)]
    sends, claims = (
        [each for turn in zip_longest(*ways) for each in turn if each] for ways in zip(*parts, strict=True)
    )
    return native.Life(sends, claims, len(contents))


def _slot(
    send_sha: str, claim_sha: str, slot: int, contents: Sequence[bytes], scores: Sequence[int]
) -> tuple[list[bytes], list[bytes]]:
    keys = [b"least_%d" % slot, b"prepare{least_%d}" % slot, b"meta{least_%d}" % slot]
    sends: list[bytes] = []
    claims: list[bytes] = []
    first, before = 0, 0
    for number, part in enumerate([*batches(contents, BATCH), ()]):  # the last claim only acks
        if part:
            pairs = native.pairs(scores[first : first + len(part)], part)
            sends.append(native.pack("EVALSHA", send_sha, 3, *keys, *pairs))
        ends = _FIRST_CLAIM + 1_000 * number
        claims.append(native.pack("EVALSHA", claim_sha, 3, *keys, ends - 1_000, ends, BATCH, before))
        first, before = first + len(part), len(part)
    return sends, claims
