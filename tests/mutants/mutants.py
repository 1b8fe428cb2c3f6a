"""Bugs to plant in the scripts. Each is a replacement of text that must be there; the tests must fail for each."""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str, str]
"""File below `lua/` without `.lua`, text to replace (all of its occurrences), text to put there."""


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        name: What goes wrong, in words.
        edits: How.
    """

    name: str
    edits: tuple[Edit, ...]


def _mutant(name: str, *edits: Edit) -> Mutant:
    return Mutant(name, edits)


MUTANTS = (
    # claiming
    _mutant("in-flight contents are not skipped", ("includes/take", "if held and held[i] then", "if false then")),
    _mutant(
        "in-flight contents are not skipped, quick way",
        ("includes/take_fresh", "'NX', unpack(claims)", "unpack(claims)"),
    ),
    _mutant(
        "a claim takes what others claimed this second",
        ("includes/take_fresh", "not slot.unheld and redis", "false and redis"),
    ),
    _mutant(
        "what is not due yet is claimed",
        ("includes/take", "('%.0f', now_ms)", "('%.0f', now_ms + 1)"),
        ("includes/take_fresh", "('%.0f', now_ms)", "('%.0f', now_ms + 1)"),
        ("includes/take_fresh", "tonumber(peek[2]) <= now_ms", "tonumber(peek[2]) <= now_ms + 1"),
    ),
    _mutant("retries are not counted", ("includes/take", "score - 1)", "score)")),
    _mutant("a rollback gets fresh retries", ("includes/take_fresh", " <= max_retries then", " < 0 then")),
    _mutant(
        "prepare is not written",
        ("includes/take", "redis.call('ZADD', slot.prepare, unpack(claims))", ""),
        ("includes/take_fresh", "redis.call('ZADD', slot.prepare, 'NX', unpack(claims))", "size"),
    ),
    _mutant(
        "store is not trimmed",
        ("includes/take", "redis.call('ZREMRANGEBYRANK', slot.store, -#contents, -1)", ""),
        ("includes/take", "redis.call('ZREMRANGEBYRANK', slot.store, 0, #contents - 1)", ""),
        ("includes/take_fresh", "redis.call('ZREMRANGEBYRANK', slot.store, -size, -1)", ""),
        ("includes/take_fresh", "redis.call('ZREMRANGEBYRANK', slot.store, 0, size - 1)", ""),
    ),
    _mutant(
        "store is trimmed by rank although some were skipped",
        ("includes/take", "if skipped > 0 or start > 0 then", "if false then"),
        ("includes/take", "and skipped == 0 and start == 0 then", "then"),
    ),
    _mutant(
        "the order of priorities is reversed",
        ("includes/take", "if highest_first then\n      page", "if not highest_first then\n      page"),
        ("includes/take_fresh", "redis.call('ZREVRANGE'", "redis.call('ZRANGE'"),
    ),
    _mutant(
        "a waiting retry stays beside its fresh delivery",
        ("includes/take", "if has_retries then", "if false then"),
        ("includes/take_fresh", "redis.call('ZREM', slot.retry, unpack(mine))", "0"),
    ),
    _mutant(
        "the next due time is the last one's", ("includes/take_fresh", "second and tonumber(second) or false", "false")
    ),
    _mutant(
        "what was seen before a retry came back counts", ("includes/claim_slot", "slot.quiet and peek or nil", "peek")
    ),
    _mutant("the search does not resume", ("includes/take", "and 0 or rank - #contents", "and 0 or 0")),
    _mutant("the search resumes too far behind", ("includes/take", "0 or rank - #contents", "0 or rank")),
    _mutant("a paused slot is claimed from", ("includes/claim_slot", "if not paused and", "if")),
    _mutant("a visit that only settles tells of nothing due", ("includes/claim_slot", "whole(first_due)", "'0'")),
    _mutant("the next lease's end is forgotten", ("includes/next_due", "if claim then", "if false then")),
    _mutant(
        "bodies are not handed over", ("includes/claim_slot", "if #items > 0 and (slot", "if #items < 0 and (slot")
    ),
    # owners
    _mutant("the fence is not checked", ("includes/check_fence", "if mine < owner then", "if false then")),
    _mutant("a newer epoch is not stored", ("includes/begin_write", "if newer then", "if false then")),
    _mutant("a foreign ensemble is let in", ("includes/check_fence", "stored[2] ~= ensemble then", "false then")),
    # sweep
    _mutant("the sweep's sign is flipped", ("includes/sweep", "(now_s - lease_s)", "(now_s + lease_s)")),
    _mutant("a lease ends a second early", ("includes/sweep", "(now_s - lease_s)", "(now_s - lease_s + 1)")),
    _mutant(
        "the newest leases are swept first",
        (
            "includes/sweep",
            "redis.call('ZRANGEBYSCORE', slot.prepare, '-inf', '(' .. whole(from),",
            "redis.call('ZREVRANGEBYSCORE', slot.prepare, '(' .. whole(from), '-inf',",
        ),
    ),
    _mutant(
        "a retry overwrites a fresh copy", ("includes/sweep", "slot.store, 'NX', tonumber", "slot.store, tonumber")
    ),
    # settling
    _mutant("ack does not compare", ("includes/settle_acks", "if scores[i] ~= claim_score then", "if false then")),
    _mutant(
        "a whole claim is acked though others count",
        ("includes/settle_whole", "claim_score) ~= number", "claim_score) == 0"),
    ),
    _mutant(
        "a whole claim is acked though its witness is not in it",
        ("includes/settle_whole", "or redis.call('ZSCORE', slot.prepare, witness) ~= claim_score", "or false"),
    ),
    _mutant("a whole claim is acked after its lease", ("includes/settle_whole", "if not running or", "if")),
    _mutant("a whole ack leaves bodies behind", ("includes/settle_whole", "or not plain or", "or")),
    _mutant(
        "nack does not compare",
        ("includes/settle_nacks", "if redis.call('ZSCORE', slot.prepare, content) ~= claim_score", "if false"),
    ),
    _mutant("extend does not compare", ("extend", "content) == claim_score", "content) ~= false")),
    _mutant("extend gives no retry back", ("extend", "tonumber(claim_score) % 1000)", "0)")),
    _mutant("ack drops a fresh copy's body", ("includes/drop_bodies", "if not fresh[i] then", "if true then")),
    _mutant("ack leaves the body behind", ("includes/drop_bodies", "if #gone > 0 then", "if false then")),
    _mutant(
        "a rollback overwrites a fresh copy",
        ("includes/roll_back", "if redis.call('ZSCORE', slot.store, content) then", "if false then"),
    ),
    _mutant("a delayed retry comes early", ("includes/roll_back", "math.ceil", "math.floor")),
    _mutant(
        "a release uses up a retry",
        ("includes/settle_nacks", "'NX', ARGV[i + 3]", "'NX', math.max(1, tonumber(claim_score) % 1000)"),
    ),
    _mutant("an exhausted one never dies", ("includes/settle_nacks", "verb == 'bury' or left == 0", "verb == 'bury'")),
    _mutant(
        "prepare is trimmed before store is written",
        (
            "includes/roll_back",
            "  if redis.call('ZSCORE', slot.store",
            "  redis.call('ZREM', slot.prepare, content)\n  if redis.call('ZSCORE', slot.store",
        ),
    ),
    # the dead
    _mutant(
        "an exhausted one dies beside its fresh copy",
        ("includes/bury", "if redis.call('ZSCORE', slot.store, content) then", "if false then"),
    ),
    _mutant("death loses the body", ("includes/bury", "redis.call('HSET', slot.dead_body, content, body)", "")),
    _mutant(
        "dying twice is not accounted for",
        ("includes/bury", "count(totals, 'merged', 1)\n  end\n  count", "end\n  count"),
    ),
    _mutant("the dead are not trimmed", ("includes/trim_dead", "if #doomed > 0 then", "if false then")),
    _mutant("redrive takes one that died again", ("redrive", "died[i] ~= tonumber(found)", "false")),
    _mutant("redrive loses the body", ("redrive", "redis.call('HGET', dead_body, content)", "false")),
    _mutant("redrive overwrites where it should merge", ("redrive", "if not fresh or overwrite then", "if true then")),
    _mutant("redrive leaves the dead one behind", ("redrive", "redis.call('ZREM', dead, content)", "")),
    _mutant(
        "purge takes the youngest",
        (
            "purge_dead",
            "'ZRANGEBYSCORE', dead, '-inf', '(' .. before_ms",
            "'ZREVRANGEBYSCORE', dead, '(' .. before_ms, '-inf'",
        ),
    ),
    # sending
    _mutant(
        "a merge overwrites",
        ("includes/store_each", "'ZADD', store, 'NX', score", "'ZADD', store, score"),
        ("includes/store_batch", "'ZADD', store, 'NX', unpack", "'ZADD', store, unpack"),
    ),
    _mutant(
        "a merge replaces the body", ("includes/store_each", "if added == 1 or not keep_first then", "if true then")
    ),
    _mutant("an old body stays with a fresh send", ("includes/store_each", "redis.call('HDEL', body, content)", "")),
    _mutant("merged sends are not counted", ("includes/send_batch", "'merged', number - new", "'merged', 0")),
    _mutant("the backlog has no bound", ("includes/check_backlog", "if max_backlog == 0 or", "if true or")),
    _mutant("merging needs room", ("includes/check_backlog", "if fresh > 0 and size", "if size")),
    _mutant("the past is a fixed time", ("send_fixed_time", "if tonumber(lowest) <= now_ms then", "if false then")),
    _mutant(
        "wake hints are never published", ("includes/send_batch", "redis.call(publish, slot.wake", "redis.call('ECHO'")
    ),
    _mutant(
        "what may be in flight hides a new one from those who wait",
        ("includes/send_batch", "in_flight > 0 and '(' .. whole(now_ms) or '-inf'", "'-inf'"),
    ),
    # by content
    _mutant("cancel forgets the waiting", ("cancel", " + redis.call('ZREM', slot.retry, content)", "")),
    _mutant("reschedule leaves the waiting behind", ("reschedule", "redis.call('ZREM', retry, content)", "")),
    # numbers and memory
    _mutant("numbers keep 14 digits", ("includes/whole", "string.format('%.0f', number)", "tostring(number)")),
    _mutant("a full Redis can't be drained", ("includes/begin_write", "redis.call('ZREM', slot.store, '')", "")),
    _mutant("types are not checked first", ("includes/measure", "redis.call('HLEN', slot.dead_body)", "0")),
    # limits
    _mutant("the wrong end is dropped", ("includes/drop_excess", "if highest_first then", "if not highest_first then")),
    _mutant("one too many is dropped", ("includes/drop_excess", "- max_backlog, 1000", "- max_backlog + 1, 1000")),
    _mutant("rollbacks are dropped", ("includes/drop_excess", "'(' .. max_retries", "'-inf'")),
    _mutant("drops are not counted", ("includes/drop_excess", "count(totals, 'dropped', #last)", "")),
    _mutant(
        "a dropped copy takes the body of its twin along",
        ("includes/forget_unused", "not redis.call('ZSCORE', slot.prepare, content) and", ""),
    ),
    _mutant("what drops refuses, too", ("send_limited", "drop and 0 or max_backlog", "max_backlog")),
    _mutant(
        "the last send does not renew the age", ("send_limited", "'ZADD', born, whole", "'ZADD', born, 'NX', whole")
    ),
    _mutant("a time to live ends a millisecond early", ("includes/expire", "'(' .. string", "string")),
    _mutant("rollbacks grow too old", ("includes/expire", "'(' .. max_retries, before", "'-inf', before")),
    _mutant(
        "what grew too old is delivered where there is much of it",
        ("includes/claim_slot", "not paused and not more_outlived", "not paused"),
    ),
    _mutant(
        "nobody comes back for more that is too old",
        ("includes/claim_slot", "not more and not more_outlived", "not more"),
    ),
    _mutant(
        "who is too old loses its body", ("includes/expire", "redis.call('HSET', slot.dead_body, content, body)", "")
    ),
    _mutant("a released one keeps no age", ("includes/settle_nacks", "elseif slot.born then", "elseif false then")),
    _mutant("a redriven one keeps no age", ("redrive", "if born then\n        redis", "if false then\n        redis")),
    _mutant("ages pile up", ("includes/claim_slot", "redis.call('ZREM', slot.born, unpack(names))", "")),
    _mutant("ranks are taken for unmoved", ("includes/expire", "expired > 0 and 0 or start", "start")),
    # steering
    _mutant("promote postpones what is due", ("promote", "if tonumber(stored) > now_ms then", "if true then")),
    _mutant("promote gives retries back", ("promote", "tonumber(waiting) % 1000", "now_ms")),
    _mutant("promote is not the first", ("promote", "max_retries) + 1", "max_retries)")),
    _mutant("promote leaves the retry behind", ("promote", "redis.call('ZREM', retry, content)", "")),
    _mutant("promote wakes nobody", ("promote", "redis.call(publish, wake, '0')", "")),
    _mutant("resume wakes nobody", ("pause", "redis.call(publish, wake, '0')", "")),
    _mutant("resume does not end the pause", ("pause", "redis.call('HDEL', meta, 'paused')", "")),
    _mutant("purge takes the wrong end", ("purge_backlog", "from, 0, limit - 1", "from, -limit, -1")),
    _mutant("purge is not counted", ("purge_backlog", "write_totals(slot.meta, { purged = #contents })", "")),
    _mutant(
        "purge takes the body of a copy in store along",
        ("purge_backlog", "if not redis.call('ZSCORE', store, content) then", "if true then"),
    ),
    _mutant("cancel is not written down", ("cancel", "note(audit, actor, 'cancel'", "note(audit, '', 'cancel'")),
    _mutant("a step by nobody is written down", ("includes/note", "if actor ~= '' then", "if true then")),
    _mutant(
        "find mixes up the places",
        ("find", "{ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }", "{ KEYS[1], KEYS[3], KEYS[2], KEYS[4] }"),
    ),
    _mutant("search hands over every body", ("search", "if left >= 0 then", "if true then")),
    # rate limit
    _mutant(
        "the bucket overflows",
        ("take_tokens", "math.min(most, tonumber(known[3]) + gone_ms", "(tonumber(known[3]) + gone_ms"),
    ),
    _mutant("more is granted than there is", ("take_tokens", "math.floor(tokens + 0.000001)", "math.ceil(tokens)")),
    _mutant("tokens are not taken", ("take_tokens", "math.max(0, tokens - granted)", "tokens")),
    _mutant(
        "a clock that jumps back takes tokens away",
        ("take_tokens", "math.max(0, now_ms - tonumber(known[4]))", "now_ms - tonumber(known[4])"),
    ),
    _mutant("time counts twice", ("take_tokens", "'at_ms', whole(now_ms))", "'at_ms', known[4] or whole(now_ms))")),
    _mutant(
        "a changed rate is not taken",
        ("take_tokens", "tonumber(known[1] or rate), tonumber(known[2] or burst)", "tonumber(rate), tonumber(burst)"),
    ),
    _mutant("slow rates are rounded away", ("take_tokens", "%.17g", "%.6f")),
    _mutant("a full Redis grants nothing", ("take_tokens", "redis.call('HDEL', bucket, '')", "")),
    _mutant("nobody learns of a lost bucket", ("take_tokens", "known[1] and '0' or '1'", "'0'")),
    _mutant("workers are never forgotten", ("worker_beat", "'-inf', whole(now_ms - forget_ms)", "'-inf', '0'")),
    # streaming queries of Spark
    _mutant(
        "a poisonous batch dies as a whole",
        ("includes/replay_chunk", "left == 0 or share == 0", "left == 0 or share"),
    ),
    _mutant(
        "a poisonous batch gives its rows back as rollbacks",
        (
            "includes/replay_chunk",
            "roll_back(slot, content, chunk.items[i + 1], 0,",
            "roll_back(slot, content, left, 0,",
        ),
    ),
    _mutant(
        "a poisonous batch is halved by its replays, not by what the last one had",
        ("includes/share_of", "(chunk.share or size) / 2", "size / 2 ^ (chunk.replays - max_replays)"),
    ),
    _mutant(
        "a poisonous batch claims again what it has given back",
        (
            "spark_read",
            "if not paused and redis.call('HGET', slot.query, 'halved') ~= ARGV[2] then",
            "if not paused then",
        ),
    ),
    _mutant(
        "a poisonous batch is never halved",
        ("includes/share_of", "if chunk.replays <= max_replays then", "if true then"),
    ),
)
