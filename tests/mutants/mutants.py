"""Bugs to plant in the scripts. Each is a replacement of text that must be there; the tests must fail for each."""

from __future__ import annotations

from tests.mutants.brief import BRIEF
from tests.mutants.deletion import DELETION
from tests.mutants.merging import MERGING
from tests.mutants.mutant import mutant as _mutant
from tests.mutants.owners import OWNERS
from tests.mutants.ties import TIES

MUTANTS = (
    # claiming
    _mutant("in-flight contents are not skipped", ("take", "if held and held[i] then", "if false then")),
    _mutant(
        "in-flight contents are not skipped, quick way",
        ("into_prepare", "'NX', unpack(claims)", "unpack(claims)"),
    ),
    _mutant("slots of a call: one has the budget of several", ("claim", "work = joined and 48 or 96", "work = 48")),
    _mutant(
        "slots of a call: the error of a single one is a reply",
        ("claim", "reply.err and reply or { reply }", "{ reply }"),
    ),
    _mutant(
        "slots of a call: an error in one ends all",
        ("serve_slots", "pcall(part, base, at, true)", "true, part(base, at, true)"),
    ),
    _mutant(
        "slots of a call: the next one has the keys of the last one", ("serve_slots", "base + (width", "base * (width")
    ),
    _mutant("slots of a group's call: one has the budget of several", ("stream_claim", "joined and { work", "{ work")),
    _mutant("two claims have one stamp", ("claim_slot", "now_ms <= clock.last then", "false then")),
    _mutant("a stamp is drawn twice", ("next_stamp", "clock.last + 1)", "clock.last)")),
    _mutant("the stamp is not noted", ("claim_slot", "if #items > 0 or clock.changed then", "if false then")),
    _mutant("a renewal's stamp is not noted", ("extend", "if renewed then", "if false then")),
    _mutant(
        "a clock that was set back goes unseen", ("read_slot_clock", "if now_ms < clock.seen then", "if false then")
    ),
    _mutant(
        "leases do not follow a clock that was set back",
        ("read_slot_clock", "clock.lead + back, clock.skew + back", "clock.lead, clock.skew"),
    ),
    _mutant(
        "a shorter lease ends what a longer one holds",
        ("read_slot_clock", "clock.lease_ms, clock.lease = longest,", "clock.lease_ms, clock.lease = lease_ms,"),
    ),
    _mutant("a score above all stamps stays", ("find_expired", "find('(' .. whole(top), '+inf')", "")),
    _mutant("leases follow a lead at once", ("settle_clock", "slot.oldest >= clock.mark * 1000", "slot.oldest")),
    _mutant("a lead never follows", ("next_stamp", "clock.lead + 1000 then", "clock.lead + 10000000 then")),
    _mutant(
        "what is not due yet is claimed",
        ("take", "('%.0f', now_ms)", "('%.0f', now_ms + 1)"),
        ("take_fresh", "('%.0f', now_ms)", "('%.0f', now_ms + 1)"),
        ("take_fresh", "tonumber(peek[2]) <= now_ms", "tonumber(peek[2]) <= now_ms + 1"),
        ("take_alike", "tonumber(score) > now_ms then", "tonumber(score) > now_ms + 1 then"),
    ),
    _mutant("retries are not counted", ("move_claimed", "math.ceil(score) - 1)", "math.ceil(score))")),
    _mutant("a rollback gets fresh retries", ("take_fresh", " <= max_retries then", " < 0 then")),
    _mutant(
        "a rollback gets fresh retries among others of its score",
        ("take_alike", "tonumber(score) <= max_retries or", "false or"),
    ),
    _mutant(
        "what else is due waits behind messages of one score", ("take_alike", "if due > number then", "if false then")
    ),
    _mutant(
        "messages of one score have any number of bytes",
        ("take_alike", "if bytes > slot.room.left then", "if false then"),
    ),
    _mutant(
        "prepare is not written",
        ("move_claimed", "redis.call('ZADD', slot.prepare, unpack(claims))", ""),
        ("into_prepare", "redis.call('ZADD', slot.prepare, 'NX', unpack(claims))", "size"),
    ),
    _mutant(
        "store is not trimmed",
        ("move_claimed", "redis.call('ZREMRANGEBYRANK', slot.store, -#contents, -1)", ""),
        ("move_claimed", "redis.call('ZREMRANGEBYRANK', slot.store, 0, #contents - 1)", ""),
        ("take_fresh", "redis.call('ZREMRANGEBYRANK', slot.store, -size, -1)", ""),
        ("take_fresh", "redis.call('ZREMRANGEBYRANK', slot.store, 0, size - 1)", ""),
        ("take_alike", "redis.call('ZREMRANGEBYRANK', slot.store, -number, -1)", ""),
        ("take_alike", "redis.call('ZREMRANGEBYRANK', slot.store, 0, number - 1)", ""),
    ),
    _mutant(
        "store is trimmed by rank although some were skipped",
        ("move_claimed", "if not in_front then", "if false then"),
        ("move_claimed", "if #contents > 0 and in_front then", "if #contents > 0 then"),
    ),
    _mutant(
        "the order of priorities is reversed",
        ("read_page", "redis.call('ZREVRANGE'", "redis.call('ZRANGE'"),
    ),
    _mutant(
        "a waiting retry stays beside its fresh delivery",
        ("move_claimed", "if has_retries then", "if false then"),
        ("take_fresh", "redis.call('ZREM', slot.retry, unpack(mine))", "0"),
    ),
    _mutant("the next due time is the last one's", ("take_fresh", "second and tonumber(second) or false", "false")),
    _mutant("what was seen before a retry came back counts", ("claim_slot", "slot.quiet and peek or nil", "peek")),
    _mutant("Spark's search does not resume", ("spark_read", "#items == 0 and resume > 0", "false")),
    _mutant(
        "a search among outlived ones begins again",
        ("take_between", "start - #items / 2", "0"),
        ("take_unexpired", "take(slot, true, limit, start,", "take(slot, true, limit, 0,"),
    ),
    _mutant("the search does not resume", ("take", "items, rank - #contents + shift", "items, 0")),
    _mutant("the search resumes too far behind", ("take", "items, rank - #contents + shift", "items, rank + shift")),
    _mutant("a paused slot is claimed from", ("claim_slot", "if not paused and", "if")),
    _mutant("a visit that only settles tells of nothing due", ("claim_slot", "whole(first_due)", "'0'")),
    _mutant("the next lease's end is forgotten", ("next_due", "if claim then", "if false then")),
    _mutant("bodies are not handed over", ("claim_slot", "if #items > 0 and (slot", "if #items < 0 and (slot")),
    # owners
    _mutant("the fence is not checked", ("check_fence", "if mine < owner then", "if false then")),
    _mutant("a newer epoch is not stored", ("begin_write", "if newer then", "if false then")),
    _mutant("a foreign ensemble is let in", ("check_fence", "stored[2] ~= ensemble then", "false then")),
    # sweep
    _mutant(
        "the sweep's sign is flipped",
        ("find_expired", "(clock.now - clock.lease_ms)", "(clock.now + clock.lease_ms)"),
    ),
    _mutant(
        "a lease ends a millisecond early",
        ("find_expired", "(clock.now - clock.lease_ms)", "(clock.now - clock.lease_ms + 1)"),
    ),
    _mutant(
        "the newest leases are swept first",
        (
            "find_expired",
            "redis.call('ZRANGEBYSCORE', slot.prepare, from, to,",
            "redis.call('ZREVRANGEBYSCORE', slot.prepare, to, from,",
        ),
    ),
    # settling
    _mutant("ack does not compare", ("settle_acks", "if scores[i] ~= claim_score then", "if false then")),
    _mutant(
        "a whole claim is acked though others count",
        ("settle_whole", "claim_score) ~= tonumber(ARGV[i + 1])", "claim_score) == 0"),
    ),
    _mutant("a whole ack leaves bodies behind", ("settle_whole", "if not plain or", "if")),
    _mutant(
        "nack does not compare",
        ("settle_nacks", "if redis.call('ZSCORE', slot.prepare, content) ~= claim_score", "if false"),
    ),
    _mutant("nacks that a call leaves as they are count as settled", ("settle", "tonumber(ARGV[first]) - done", "0")),
    _mutant(
        "slots of one settlement have a budget each", ("settle", "budget = budget", "budget = { bytes = 4194304 }")
    ),
    _mutant(
        "a settlement of several slots leaves no epoch", ("settle", "if newer or not joined then", "if not joined then")
    ),
    _mutant("nobody hears of what a nack has made due", ("settle", "if back > 0 then", "if false then")),
    _mutant(
        "whoever only settles brings back a group",
        ("stream_settle", "redis.call('XGROUP', 'DESTROY', slot.store, group)", ""),
    ),
    _mutant("extend does not compare", ("extend", "scores[i] == claim_score", "scores[i] ~= false")),
    _mutant("extend gives no retry back", ("extend", "tonumber(claim_score) % 1000)", "0)")),
    _mutant("ack drops a fresh copy's body", ("drop_bodies", "if not fresh[i] then", "if true then")),
    _mutant("ack leaves the body behind", ("drop_bodies", "if #gone > 0 then", "if false then")),
    _mutant(
        "a rollback overwrites a fresh copy",
        ("return_to_store", "slot.store, 'NX', score", "slot.store, score"),
    ),
    _mutant(
        "a failure is forgotten with a fresh send",
        ("return_to_store", "keep_failure(slot, content)", "redis.call('HDEL', slot.error, content)"),
    ),
    _mutant("a delayed retry comes early", ("roll_back", "math.ceil", "math.floor")),
    _mutant(
        "a release uses up a retry",
        ("settle_nacks", "content, ARGV[i + 3]", "content, whole(math.max(1, tonumber(claim_score) % 1000))"),
    ),
    _mutant(
        "an exhausted one never dies",
        ("settle_nacks", "verb == 'bury' or (verb == 'retry' and left == 0)", "verb == 'bury'"),
    ),
    _mutant("one that is spared uses up a retry", ("settle_nacks", "math.min(left + 1, max_retries)", "left")),
    _mutant("one that is spared dies", ("settle_nacks", "(verb == 'retry' and left == 0)", "left == 0")),
    _mutant(
        "an entry that is spared uses up a retry",
        ("settle_entries", "verb == 'spare' and deliveries - 1 or deliveries", "deliveries"),
    ),
    _mutant(
        "an entry that is spared dies",
        ("settle_entries", "(verb == 'retry' and deliveries > max_retries)", "deliveries > max_retries"),
    ),
    _mutant(
        "prepare is trimmed before store is written",
        (
            "roll_back",
            "  local fresh, cost, sooner = false",
            "  redis.call('ZREM', slot.prepare, content)\n  local fresh, cost, sooner = false",
        ),
    ),
    # skiplists
    _mutant(
        "what begins a skiplist stays",
        (
            "end_skiplist",
            "local function end_skiplist(set, score)\n",
            "local function end_skiplist(set, score)\n  set = ''\n",
        ),
    ),
    _mutant(
        "a message of the name that begins a skiplist is lost",
        ("begin_store", "if names[i] == LONG then", "if false then"),
    ),
    _mutant(
        "all members of the name that begins a skiplist are removed", ("into_prepare", "size, '0',", "size, claims[1],")
    ),
    # the dead
    _mutant(
        "an exhausted one dies beside its fresh copy",
        ("bury", "if not slot.held and redis.call('ZSCORE', slot.store, content) then", "if false then"),
    ),
    _mutant("death loses the body", ("enter_dead", "redis.call('HSET', slot.dead_body, content, body)", "")),
    _mutant(
        "dying twice is not accounted for",
        ("enter_dead", "again and 1 or 0", "0"),
    ),
    _mutant("the dead are not trimmed", ("trim_dead", "if #doomed > 0 then", "if false then")),
    _mutant("redrive takes one that died again", ("redrive", "died[i] ~= tonumber(found)", "false")),
    _mutant("redrive loses the body", ("redrive", "redis.call('HGET', dead_body, content)", "false")),
    _mutant("redrive overwrites where it should merge", ("redrive", "if not fresh or overwrite then", "if true then")),
    _mutant("redrive leaves the dead one behind", ("redrive", "redis.call('ZREM', dead, content)", "")),
    _mutant("a purge leaves reasons behind", ("purge_dead", "redis.call('HDEL', reason, unpack(contents))", "")),
    # sending
    _mutant(
        "a merge overwrites",
        ("store_each", "'ZADD', store, 'NX', score", "'ZADD', store, score"),
        ("store_batch", "'ZADD', slot.store, 'NX', unpack", "'ZADD', slot.store, unpack"),
    ),
    _mutant(
        "a message that is sent again becomes young",
        ("with_own_age", "return fresh - fresh % scale + stored % scale", "return fresh"),
    ),
    _mutant("the sender's clock decides on ages", ("age_messages", "if made == mark then", "if made then")),
    _mutant("an age is put right twice", ("age_messages", "1, made - mark", "1, 2 * (made - mark)")),
    _mutant(
        "a merge keeps the old priority", ("store_batch", "if added < (last - first + 1) / 2 then", "if false then")
    ),
    _mutant(
        "of a content sent twice the first priority counts",
        ("keep_ages", "fresh[name] = messages[i] --", "fresh[name] = fresh[name] or messages[i] --"),
    ),
    _mutant(
        "a bodied merge forgets the age", ("store_each", "local stored = slot.scale and", "local stored = false and")
    ),
    _mutant("promote forgets the age", ("promote", "+ scale + own % scale", "+ scale")),
    _mutant("a redrive takes no age from its fresh copy", ("redrive", "fresh and scale > 1 and", "false and")),
    _mutant("another priority makes a message young", ("reschedule", "stored and scale > 1 and", "false and")),
    _mutant("a message without an age is a retry", ("with_own_age", "if stored < scale then", "if false then")),
    _mutant("the first body stands", ("store_each", "or replaces(body, content, bodies[i]))", "or not keep_first)")),
    _mutant("a send without a body takes it away", ("store_each", "elseif added == 1 and had", "elseif had")),
    _mutant("a trace context replaces a body", ("replaces", "if not only_trace(body, 1) then", "if true then")),
    _mutant(
        "a trace context stands before a newer one",
        ("replaces", "return not stored or only_trace(stored, 1)", "return not stored"),
    ),
    _mutant("a redrive brings an old body over a new one", ("redrive", " and not has_body(body, content)", "")),
    _mutant("an old body stays with a fresh send", ("store_each", "redis.call('HDEL', body, content)", "")),
    _mutant(
        "joined sends: a full Redis is one slot's trouble",
        ("send", "not written and (", "false and ("),
    ),
    _mutant("sends: hints go by no due time", ("send", "unit == 'at' and lowest or '0'", "'0'")),
    _mutant(
        "sends: a time that is now is taken",
        ("past_refusal", "if lowest <= now_ms then", "if lowest < now_ms then"),
    ),
    _mutant("sends: time ranges are due times", ("read_batch", "score = whole(now_ms + value)", "score = value")),
    _mutant("sends: a time range of all is a due time", ("read_batch", "now_ms and whole(now_ms + value)", "false")),
    _mutant("sends: the last one of a content stands", ("send", "keep_first = from_now", "keep_first = false")),
    _mutant(
        "sends: a delay merges as a time range", ("send", "keep_first = from_now", "keep_first = unit ~= 'priority'")
    ),
    _mutant("sends: a delay is a fixed time", ("send", "tonumber(lowest) < 0", "false")),
    _mutant("sends: a delay of all only wakes", ("send", "      ARGV[first] = lowest\n", "")),
    _mutant(
        "sends: the longest delay wakes",
        (
            "due_times",
            "lowest = math.min(lowest, due_ms)",
            "lowest = lowest == math.huge and due_ms or math.max(lowest, due_ms)",
        ),
    ),
    _mutant("sends: a delay makes times of all", ("due_times", "if due_ms < 0 then", "do")),
    _mutant(
        "sends: a delay counts from the one before", ("due_times", "if ARGV[i] ~= value then", "if not value then")
    ),
    _mutant("merged sends: a delay is a fixed time", ("send_folded", "if rules.lowest < 0 then", "if false then")),
    _mutant("sends: no time has passed", ("send", "tonumber(lowest) <= now_ms", "false")),
    _mutant("sends: made scores are made again", ("send", "made ~= '-1' and tonumber(made) or nil", "nil")),
    _mutant(
        "sends: outcomes are not told", ("send", "detailed = string.sub(ARGV[2], 1, 1) == '1'", "detailed = false")
    ),
    _mutant("sends: no slot has a bound", ("send", "max_backlog = tonumber(ARGV[4])", "max_backlog = 0")),
    _mutant(
        "sends: the least of several is that of the first",
        ("send", "lowest, ARGV[at + 3], at", "lowest, ARGV[at + 4], at"),
    ),
    _mutant(
        "joined sends: an error of one slot ends the call",
        ("send", "local done, reply = pcall(send_part, base", "local done, reply = true, send_part(base"),
    ),
    _mutant("joined sends: all go to the first slot", ("send", "store = KEYS[base + 1]", "store = KEYS[1]")),
    _mutant("merged sends are not counted", ("send_batch", "'merged', whole(number - new)", "'merged', '0'")),
    _mutant("the backlog has no bound", ("send_batch", "rules.max_backlog > 0 and size", "false and size")),
    _mutant("merging needs room", ("check_backlog", "if fresh > 0 and size", "if size")),
    _mutant("the past is a fixed time", ("past_refusal", "if lowest <= now_ms then", "if false then")),
    _mutant(
        "a refused time leaves its body to another",
        ("those_ahead", "= place, messages[i + 1]", "= messages[i], messages[i + 1]"),
    ),
    _mutant("a time that has passed refuses the others", ("send_ahead", "ahead.number == 0 or not rules.each", "true")),
    _mutant("a time that has passed refuses others that merge", ("send_folded", "not rules.each_time", "true")),
    _mutant(
        "what a call with a passed time leaves is refused",
        ("with_passed", "      break", "      outcome = '4'"),
    ),
    _mutant("wake hints are never published", ("send_batch", "hint(rules.publish, slot.wake, lowest)", "")),
    _mutant(
        "what may be in flight hides a new one from those who wait",
        ("send_batch", "in_flight > 0 and '(' .. whole(now_ms) or '-inf'", "'-inf'"),
    ),
    # bytes
    _mutant("large contents fit anywhere", ("fitting", "bytes <= slot.room.left and bytes > 0", "true")),
    _mutant("what does not fit leaves room", ("fits", "room.left = 0\n", "")),
    _mutant("a large body ends no bound", ("store_each", "redis.call('HDEL', slot.meta, 'body_bound')", "")),
    _mutant("a redriven large body ends no bound", ("redrive", "redis.call('HDEL', meta, 'body_bound')", "")),
    _mutant(
        "the first send promises small bodies always", ("send_batch", "accepted == number and not had_bodies", "true")
    ),
    _mutant("some small bodies stand for all", ("note_bound", "slot.weighed.number == number_of_bodies and ", "")),
    _mutant("what bodies did not need stays taken", ("read_bodies", "slot.room.left = left", "")),
    _mutant("a body above the bound goes unnoticed", ("read_bodies", "or bytes > bound", "")),
    _mutant("pages are read at once", ("take_fresh", "math.min(limit, slot.piece)", "limit")),
    _mutant("a large page is shown whole", ("read_within", "left = left - #piece[i]", "")),
    _mutant("large retries are moved at once", ("sweep", "budget.bytes - #due[i]", "budget.bytes")),
    # by content
    _mutant("cancel forgets the waiting", ("cancel", "redis.call('ZREM', slot.retry, content)", "0")),
    _mutant("reschedule leaves the waiting behind", ("reschedule", "redis.call('ZREM', retry, content)", "")),
    # numbers and memory
    _mutant("numbers keep 14 digits", ("whole", "string.format('%.0f', number)", "tostring(number)")),
    _mutant("a full Redis can't be drained", ("begin_write", "redis.call('ZREMRANGEBYRANK', slot.store, 1, 0)", "")),
    _mutant("types are not checked first", ("measure", "redis.call('HLEN', slot.dead_body)", "0")),
    # limits
    _mutant("the wrong end is dropped", ("drop_excess", "if highest_first then", "if not highest_first then")),
    _mutant("one too many is dropped", ("drop_excess", "- max_backlog, 1000", "- max_backlog + 1, 1000")),
    _mutant("rollbacks are dropped", ("drop_excess", "'(' .. max_retries", "'-inf'")),
    _mutant("drops are not counted", ("drop_excess", "tally(totals, 'dropped', #doomed)", "")),
    _mutant(
        "a dropped copy takes the body of its twin along",
        ("forget_unused", "not held[i] and", ""),
    ),
    _mutant("what drops refuses, too", ("send_limited", "drop == '0' and max_backlog or 0", "max_backlog")),
    _mutant(
        "the last send does not renew the age", ("send_limited", "'ZADD', born, whole", "'ZADD', born, 'NX', whole")
    ),
    _mutant("a time to live ends a millisecond early", ("expire", "'(' .. string", "string")),
    _mutant("rollbacks grow too old", ("expire", "'(' .. max_retries, before", "'-inf', before")),
    _mutant(
        "what grew too old is delivered where there is much of it",
        ("claim_slot", "if more_outlived and not paused", "if false and not paused"),
    ),
    _mutant(
        "nobody comes back for more that is too old",
        ("claim_slot", "not more and not more_outlived", "not more"),
    ),
    _mutant("a released one keeps no age", ("settle_nacks", "slot.born and not fresh", "false")),
    _mutant("a redriven one keeps no age", ("redrive", "if born then\n        redis", "if false then\n        redis")),
    _mutant("ages pile up", ("claim_slot", "redis.call('ZREM', slot.born, unpack(names))", "")),
    _mutant("ranks are taken for unmoved", ("expire", "start - expired", "start")),
    # steering
    _mutant("promote postpones what is due", ("promote", "if tonumber(stored) > now_ms then", "if true then")),
    _mutant("promote gives retries back", ("promote", "left > 0 and left or now_ms", "now_ms")),
    _mutant(
        "a retry of a topic without retries is due in 1970", ("sweep", "left > max_retries and slot.timed", "false")
    ),
    _mutant("promote is not the first", ("promote", "top + (top", "top - (top")),
    _mutant("promote leaves the retry behind", ("promote", "redis.call('ZREM', retry, content)", "")),
    _mutant("promote wakes nobody", ("promote", "hint(publish, wake, '0')", "")),
    _mutant("resume wakes nobody", ("pause", "hint(publish, wake, '0')", "")),
    _mutant("resume does not end the pause", ("pause", "redis.call('HDEL', meta, 'paused')", "")),
    _mutant("purge takes the wrong end", ("purge_backlog", "from, 0, limit - 1", "from, -limit, -1")),
    _mutant("purge is not counted", ("purge_backlog", "write_totals(slot.meta, { purged = #contents })", "")),
    _mutant(
        "purge takes the body of a copy in store along",
        ("purge_backlog", "if not fresh[i] then", "if true then"),
    ),
    _mutant("cancel is not written down", ("cancel", "note(audit, actor, 'cancel'", "note(audit, '', 'cancel'")),
    _mutant("a step by nobody is written down", ("note", "if actor ~= '' then", "if true then")),
    _mutant(
        "find mixes up the places",
        ("find", "{ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }", "{ KEYS[1], KEYS[3], KEYS[2], KEYS[4] }"),
    ),
    _mutant("search hands over every body", ("search", "if left >= 0 then", "if true then")),
    # rate limit
    _mutant(
        "the bucket overflows",
        ("take_tokens", "math.min(most, tokens + math.max(0, now_ms - at_ms)", "(tokens + math.max(0, now_ms - at_ms)"),
    ),
    _mutant("more is granted than there is", ("take_tokens", "math.floor(tokens + 0.000001)", "math.ceil(tokens)")),
    _mutant("tokens are not taken", ("take_tokens", "math.max(0, tokens - granted)", "tokens")),
    _mutant(
        "a clock that jumps back takes tokens away",
        ("take_tokens", "math.max(0, now_ms - at_ms)", "(now_ms - at_ms)"),
    ),
    _mutant("time counts twice", ("take_tokens", "'at_ms', whole(now_ms))", "'at_ms', stored[2] or whole(now_ms))")),
    _mutant(
        "a changed rate is not taken",
        ("take_tokens", "number_of(known[1]), number_of(known[2])", "number_of(rate), number_of(burst)"),
    ),
    _mutant(
        "groups share a bucket",
        ("take_tokens", "'HMGET', bucket, 'tokens', 'at_ms'", "'HMGET', limit, 'tokens', 'at_ms'"),
    ),
    _mutant(
        "a group's bucket is forgotten before it is full",
        ("take_tokens", "(most - tokens) * 1000", "(tokens - most) * 1000"),
    ),
    _mutant("slow rates are rounded away", ("take_tokens", "%.17g", "%.6f")),
    _mutant("a full Redis grants nothing", ("take_tokens", "redis.call('HDEL', bucket, '')", "")),
    _mutant("nobody learns of a lost bucket", ("take_tokens", "tonumber(burst), '1'", "tonumber(burst), '0'")),
    _mutant("workers are never forgotten", ("worker_beat", "'-inf', whole(now_ms - forget_ms)", "'-inf', '0'")),
    _mutant("totals go to Redis as Lua writes numbers", ("write_totals", "whole(number)", "number")),
    # a group that was moved
    _mutant("streams: a group that was moved back takes what is held", ("pass_over", "~= nil or", "== 0 or")),
    _mutant(
        "streams: a group that was moved back takes its dead", ("pass_over", "entry[1]) ~= false", "entry[1]) == 0")
    ),
    _mutant("streams: what a moved group holds counts as lag", ("pass_over", "tally(totals, 'skipped', number)", "")),
    _mutant(
        "streams: a moved group's lag is of its old place", ("stream_move_group", "added - left - read", "added - left")
    ),
    _mutant(
        "streams: a second move forgets what is held",
        ("stream_move_group", "and state[4] or stood", "and stood or stood"),
    ),
    # a clock that was set back
    _mutant(
        "streams: a clock that was set back goes unseen",
        ("leases_to_restart", "if seen > now_ms then", "if false then"),
    ),
    _mutant(
        "streams: leases begin once more in a single step",
        ("restart_leases", "(more and ' ' .. rows[#rows][1] or '')", "''"),
    ),
    _mutant("streams: leases begin once more, and nobody hears of it", ("restart_leases", "true, more", "true, false")),
    _mutant("a lock of a clock that was set back stays", ("read_lock", " and till <= now_ms + longest_ms", "")),
    _mutant("a lock that another one holds is taken", ("take_lock", "(held or how == 'keep')", "how == 'keep'")),
    _mutant("who has lost a lock keeps it", ("take_lock", "(held or how == 'keep')", "held")),
    _mutant("a turn to tell of a clock that was set back stays", ("turn_to_tell", "(told or 0) <= now_ms", "true")),
    _mutant("a window of a clock that was set back stays", ("plan_sends", "noted > now_ms + 1000", "false")),
    # streaming queries of Spark
    _mutant(
        "a poisonous batch dies as a whole",
        ("replay_chunk", "left == 0 or share == 0", "left == 0 or share"),
    ),
    _mutant(
        "a poisonous batch gives its rows back as rollbacks",
        ("replay_chunk", "given_back[#given_back + 2] = content, score", "given_back[#given_back + 2] = content, left"),
    ),
    _mutant(
        "a poisonous batch is halved by its replays, not by what the last one had",
        ("share_of", "(chunk.share or size) / 2", "size / 2 ^ (chunk.replays - max_replays)"),
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
        ("share_of", "if chunk.replays <= max_replays then", "if true then"),
    ),
    _mutant(
        "an ack takes a change that merged with what a sweep has put back",
        ("committed_elsewhere", """string.match(failures[n], '"merged":"(%d+)"') == merged""", "true"),
    ),
    _mutant(
        "an ack takes what was claimed anew, and swept, since Spark has read it",
        ("committed_elsewhere", "ours = ours or claim % 1000 == lefts[n] and", "ours = true or"),
    ),
    _mutant(
        "what Spark has committed comes again from a worker whose lease has ended",
        ("sweep", "if earlier.committed then", "if false then"),
    ),
    _mutant(
        "a renewal forgets under which stamp a chunk has lost some",
        ("spark_settle", "lost = still < held and lost .. ' ' .. whole(stamp) or lost", ""),
    ),
    _mutant("a late task of an earlier batch sends its chunk", ("send_chunk", "known.floor > call.floor or ", "")),
    _mutant("a chunk with other messages counts as sent", ("send_chunk", "known.digest == digest", "known.digest")),
    _mutant("a chunk leaves no mark", ("send_chunk", "if not reply.err then", "if false then")),
    _mutant(
        "a late task of an earlier batch sends its chunk, where sends merge",
        ("sent_before", "known.floor > call.floor or ", ""),
    ),
    # what a durable answer relies on
    _mutant(
        "a repeat that is answered writes nothing",
        ("completed", "redis.call('PEXPIRE', hash, whole(keep.key_ms)) --", "--"),
    ),
    _mutant("entries that are there already write nothing", ("stream_send", "  replicate(meta)\n", "")),
    _mutant("an open id takes the last number again", ("whole_id", "(last_sequence) + 1)", "(last_sequence))")),
    _mutant("what changes nothing is no write", ("replicate", "redis.call('HSET', hash, 'written', '1')", "")),
    _mutant("what was not found is no write", ("cancel", "replicate(slot.meta)", "")),
    *BRIEF,
    *MERGING,
    *TIES,
    *DELETION,
    *OWNERS,
)
