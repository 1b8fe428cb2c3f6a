"""Every script at its bound, as a table: what fills a slot, and the call that is measured. `bounds` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.support.bounds_place import FAR, FILLED, ME, Fill, Make, Place, case, empty, failure, on, run, small
from rmq import Fixed, Merge, RangeMergeMessage, Retention, Sliding, Sum, TopicType, WhenFull
from rmq.spark import calls as spark_calls
from rmq.spark.calls import CHUNK, Claim, Driver, How, Reading
from rmq.spark.marks import Mark, send_once
from tests.support import core
from tests.support.core import Call, ClaimPart, Outcomes, claims, control, dead, shared, streams, viewing
from tests.support.one_slot import claim_group, claim_slot, settle_group, settle_slot

MAX_BATCH, NACK_BATCH, CONTROL_BATCH = claims.MAX_BATCH, claims.NACK_BATCH, control.CONTROL_BATCH
SLOTS_A_CLAIM = core.MOST_WEIGHT // (core.CLAIM_WEIGHT + 10)
PORTION = 4
"""Bodies of 1 MiB that the nacks of one call may bury."""
LONG_TTL = "11d13h46m40s"
DRIVER, AGAIN, MARK = Driver("q", 1), Driver("q", 2), Mark("q", 1, 0, 1_000, 0, "d")
TURN, TOLD_BEFORE = core.Turn("n", "me", 60_000), {"told:n": "1 1 me"}
GONE: dict[str, Any] = {"min_idle_time": 0, "idle": 10**8, "retrycount": 99, "justid": True}
P, F, R, S = TopicType.PRIORITY, TopicType.FIXED_TIME, TopicType.RANGE_MERGE, TopicType.STREAM

# --- sending


def send(place: Place, messages: Sequence[core.EncodedMessage]) -> Call[Any]:
    """Send a batch."""
    return core.send_calls(place.topic)(0, messages, True)


def batch(score: int = FAR, stored: int | None = None) -> Fill:
    """Return what makes as many messages as a call takes, beside as many with another score that are in the backlog."""

    def fill(place: Place) -> list[core.EncodedMessage]:
        if stored is not None:
            place.store(MAX_BATCH, score=stored)
        return place.messages(MAX_BATCH, score)

    return fill


def send_many(place: Place, _: Any) -> Call[Any]:
    """Send to as many slots, and as many messages, as a call has."""
    messages, slots = place.messages(core.JOINED_MESSAGES), range(core.JOINED_SLOTS)
    batches = [core.Batch.of([message._replace(slot=slot) for message in messages]) for slot in slots]
    return core.QueueSends(place.topic).joined(batches, True)


def sums(place: Place) -> list[core.EncodedMessage]:
    """Put sums into the backlog; return as many sends that fold into them."""
    messages = [core.encode(place.topic, RangeMergeMessage(name, body=1)) for name in place.names(MAX_BATCH, "c")]
    place.zset(place.keys.store, [message.content for message in messages], FAR)
    place.client.hset(place.keys.body, mapping={message.content: message.body or b"" for message in messages})
    return messages


def part_call(place: Place, messages: Sequence[core.EncodedMessage]) -> Call[Any]:
    """Build the call of `send_many` on a topic that merges: it may take the first messages only."""
    calls = core.send_calls(place.topic)
    assert isinstance(calls, core.MergedSends)
    return calls(0, messages, True, partly="each")


DROPPING: dict[str, Any] = {"ttl": "1m", "max_backlog": 1, "when_full": WhenFull.DROP}
SLIDING, FIXED = Merge(Sum(), window=Sliding("5s", max_wait="1m")), Merge(Sum(), window=Fixed("5s"))

SENDING = [
    case("send", "1,000 by priority", batch(), send),
    small("send", "as many slots and messages as a call has", empty, send_many, slots=1_024, ties="oldest"),
    case("send", "1,000 that merge, with another priority", batch(1_000, 2**40), send, ties="oldest"),
    case("send", "1,000 at a time", batch(), send, F),
    case("send", "1,000 after a time", batch(5_000), send, R),
    case("send", "1,000 with a delay", batch(-5_000), send, F),
    case("send", "1,000, of which it drops as many", batch(stored=1_000), send, **DROPPING),
    case("send_merged", "1,000 that fold", sums, part_call, R, merge=SLIDING),
    case("send_merged", "1,000 that fold, a chunk of Spark", sums, on(send_once, FILLED, MARK), R, merge=FIXED),
    case("send", "1,000, a chunk of Spark", batch(), on(send_once, FILLED, MARK)),
]

# --- claiming and settling


def twins(place: Place) -> None:
    """Let many of those that come first be in flight."""
    place.store(MAX_BATCH, score=10**6)
    place.zset(place.keys.store, [name for name, _ in place.held(4_000)], FAR - 5_000)


def rolled_back(place: Place) -> None:
    """Fill the backlog with messages that have failed, beside retries that are due."""
    place.zset(place.keys.store, place.store(MAX_BATCH), 3, 0)
    place.waiting(10)


def nacks(held: Sequence[tuple[bytes, int]], verb: str = "retry", number: int = 1_000) -> list[core.Nack]:
    """Return nacks of claims."""
    return [core.Nack(name, score, verb, number, "ValueError", "no" * 200) for name, score in held[:NACK_BATCH]]


def nack(verb: str = "retry", number: int = 1_000) -> Make:
    """Return what settles claims by nacks."""
    return lambda place, held: settle_slot(place.topic, 0, Outcomes(nacks=nacks(held, verb, number)))


def everything(place: Place) -> Outcomes:
    """Fill all places; return outcomes."""
    place.store(4_000)
    for prefix, left in (("a", 5), ("b", 0)):
        place.failed(1_000, left, 10**8, prefix)
    place.waiting(1_000)
    place.dead(2_000)
    acks = place.held(MAX_BATCH, prefix="e")
    nacked = place.held(PORTION if place.body_bytes else core.PIGGYBACKED_NACKS, 0, prefix="f")
    return Outcomes(acks=acks, nacks=nacks(nacked))


def many_slots(place: Place) -> None:
    """Fill as many slots as a claim has."""
    for slot in range(SLOTS_A_CLAIM):
        place.go_to(slot)
        place.held(20, 5, 10**8)
        place.held(20, 0, 10**8, "b")
        place.store(20, 10**6)


def claim_slots(place: Place, _: Any) -> Call[Any]:
    """Claim from as many slots as a claim has."""
    return claims.queue_claims(place.topic)([ClaimPart(slot, 10) for slot in range(SLOTS_A_CLAIM)])


def whole_claims(place: Place) -> Outcomes:
    """Put as many claims into prepare as a call settles whole."""
    scores = [place.now_ms * 1000 - index * 1000 + 5 for index in range(core.WHOLE_BATCH)]
    for index, score in enumerate(scores):
        place.zset(place.keys.prepare, place.names(10, f"w{index:03}"), score, 0)
    return Outcomes(whole=[(score, 10) for score in scores])


def store(place: Place) -> list[bytes]:
    """Fill the backlog with as many messages as a claim takes."""
    return place.store(MAX_BATCH)


def bury(place: Place) -> list[bytes]:
    """Put as many dead messages."""
    return place.dead(MAX_BATCH)


CLAIM, SWEEP = on(claim_slot, MAX_BATCH), on(claim_slot, 0)
OUTLIVED = "messages that outlived their time to live"

CLAIMING = [
    case("claim", "1,000 due", store, CLAIM),
    case("claim", "1,000 due, behind 4,000 twins in flight", twins, CLAIM),
    case("claim", "1,000 rolled back", rolled_back, CLAIM),
    case("claim", "expired claims that go back", lambda place: place.failed(2_000, 5, 10**8), SWEEP),
    case("claim", "expired claims that die", lambda place: place.failed(2_000, 0, 10**8), SWEEP),
    case("claim", "retries that are due", lambda place: place.waiting(2_000), SWEEP),
    case("claim", OUTLIVED, lambda place: place.store(2_000), SWEEP, F, ttl="1s"),
    case("claim", OUTLIVED, lambda place: place.born(place.store(2_000)), SWEEP, ttl="1s"),
    small("claim", "times of what has left the backlog",
          lambda place: place.born(place.names(20_000)), SWEEP, ttl="1s"),
    case("claim", "too many dead", lambda place: place.dead(2_000), SWEEP, max_dead=1, most=256),
    case("claim", "everything at once", everything, on(claim_slot, MAX_BATCH, FILLED), F,
         most=256, ttl="1s", max_dead=1),
    case("claim", "as many slots as a call has", many_slots, claim_slots, most=16, slots=1_024),
    case("settle", "1,000 acks", lambda place: Outcomes(place.failed(MAX_BATCH, 16)), on(settle_slot, FILLED),
         most=core.FREED_BYTES // 2**20),
    small("settle", "256 whole claims", whole_claims, on(settle_slot, FILLED)),
    case("settle", "to retry", lambda place: place.failed(NACK_BATCH, 5), nack()),
    case("settle", "to bury", lambda place: place.failed(NACK_BATCH, 5), nack("bury"), most=PORTION),
    case("settle", "to release", lambda place: place.held(NACK_BATCH, 5), nack("release", 5)),
    case("extend", "1,000", lambda place: place.held(MAX_BATCH), on(claims.extend, FILLED)),
]  # fmt: skip

# --- steering, looking, and what is of the whole Redis


def waiting_too(place: Place) -> list[bytes]:
    """Fill the backlog with messages that wait for a retry, too."""
    names = place.failures(place.store(CONTROL_BATCH))
    place.zset(place.keys.retry, names, (place.now_ms // 1000 + 99) * 1000 + 3, 0)
    return names


def failed(place: Place) -> None:
    """Fill the backlog with messages that have failed."""
    place.failures(place.store(MAX_BATCH))


def dead_ones(place: Place) -> list[bytes]:
    """Put as many dead messages as a call names."""
    return place.dead(NACK_BATCH)


def untold(place: Place) -> None:
    """Put dead messages, some of which have been reported."""
    bury(place)
    place.client.hset(place.keys.meta, mapping=TOLD_BEFORE)


def in_all_places(place: Place) -> bytes:
    """Put a message into all places."""
    place.held(1, prefix="x")
    place.dead(1, prefix="x")
    return place.store(1, prefix="x")[0]


def full_places(place: Place) -> None:
    """Fill all places."""
    for fill in (place.store, place.held, place.waiting, place.dead):
        fill(2_000)


def little_in_slots(place: Place) -> None:
    """Put a claim and a retry into each slot."""
    for slot in range(place.topic.slots):
        place.go_to(slot)
        place.held(1)
        place.waiting(1)


def reports(place: Place) -> None:
    """Let workers have reported long ago."""
    names = [b"w%d" % index for index in range(2_000)]
    place.zset(core.WORKERS_KEY, names, place.now_ms - 10**9)
    place.client.hset(core.WORKER_INFOS_KEY, mapping=dict.fromkeys(names, b"x" * 1_000))


def plain(script: str, key: str, *args: Any) -> Call[Any]:
    """Return a call of a script that belongs to no slot."""
    return Call(script, (key,), args, lambda reply: reply, True, "t", 0)


def write_history(place: Place, _: Any) -> Call[Any]:
    """Write a minute into a full ring from a clock that was ahead."""
    minute, key = place.now_ms // 60_000, core.history_key("t")
    place.client.rpush(key, *(f"{minute + 10 + index} {'1 ' * 100}" for index in range(core.MINUTES)))
    return plain("history_write", key, f"{minute} {'1 ' * 100}", minute, core.MINUTES, core.history.KEEP_S)


LONGEST = b"x" * core.MAX_DEFINITION_BYTES


def read_definitions(place: Place, _: Any) -> Call[Any]:
    """Read the most names with the longest definitions."""
    names = [f"t{index}" for index in range(core.registry.READ_AT_ONCE)]
    place.client.hset(core.TOPICS_KEY, mapping=dict.fromkeys(names, LONGEST))
    return plain("registry_read", core.TOPICS_KEY, len(LONGEST), *names)


def define(place: Place, _: Any) -> Call[Any]:
    """Write the longest definition."""
    place.client.hset(core.TOPICS_KEY, "t", LONGEST)
    return plain("registry_define", core.TOPICS_KEY, "t", LONGEST, LONGEST)


def list_children(place: Place, _: Any) -> Call[Any]:
    """List the owner nodes of the most slots that one worker may have."""
    place.client.hset(core.OWNERS_KEYS["nodes"], "", "1 1 0 0 ")
    place.client.zadd(core.OWNERS_KEYS["sessions"], {"1": 60_000})
    place.zset(core.OWNERS_KEYS["held"], [b"1\0/%05d" % number for number in range(core.MOST_SLOTS)], 0, step=0)
    return shared.keep_nodes(1, 60_000, ["own", "", "", ""], 0, 0, changes=False)


STEERING = [
    case("reschedule", "the most", waiting_too, on(control.reschedule, FILLED, ("priority", FAR), "me"), ttl=LONG_TTL),
    case("promote", "the most", waiting_too, on(control.promote, FILLED, "me"), ttl=LONG_TTL),
    case("redrive", "the most", dead_ones,
         on(dead.redrive, ("priority", FAR), overwrite=True, contents=FILLED, actor="me"), ttl=LONG_TTL),
    case("purge_dead", "named ones", dead_ones, on(dead.purge_dead, FILLED, actor="me"), most=1_000),
    case("purge_backlog", "1,000", failed, on(control.purge_backlog, "store", MAX_BATCH), most=1_000, ttl=LONG_TTL),
    case("peek", "a page", store, on(viewing.peek, "store", 0, MAX_BATCH)),
    case("list_dead", "a page", bury, on(dead.list_dead, 0, NACK_BATCH)),
    case("untold_dead", "a page", untold, on(dead.untold, TURN, core.AT_ONCE)),
    case("dead_reasons", "the largest sample", bury, on(dead.dead_reasons, viewing.MOST_REASONS)),
    case("find", "one in all places", in_all_places, on(viewing.find, FILLED)),
    case("search", "a step", full_places, on(viewing.search, b"*", core.search.MOST, ("0", "0", "0", "0"))),
    small("look", "256 slots", little_in_slots, lambda place, _: claims.look(place.topic, range(256)), slots=256),
    small("stats", "a slot", store, on(viewing.stats), F),
    small("worker_beat", "with others to forget", reports, lambda *_: shared.worker_beat("w", "{}", 60_000)),
    small("workers", "1,000", reports, lambda *_: shared.workers()._replace(parse=len)),
    small("take_tokens", "1,000", empty, lambda place, _: shared.take_tokens(place.topic, MAX_BATCH), max_rate=1_000),
    small("take_lock", "a minute", empty,
          lambda *_: shared.take_lock(core.HISTORY_LOCK_KEY, "minute", "me", 60_000, "period")),
    small("keeper", "the children of 16,384 slots", empty, list_children),
    small("history_write", "a full ring from a clock that was ahead", empty, write_history),
    small("registry_read", "the most names, the longest definitions", empty, read_definitions),
    small("registry_define", "the longest definition", empty, define),
    case("delete_topic", "all of a slot", failed, on(core.deletion.delete_slot, "d", (), force=True)),
]  # fmt: skip

# --- streaming queries


def chunk(driver: Driver = DRIVER, max_replays: int = 10) -> Make:
    """Return what reads a chunk."""
    reading = Reading(driver, 1, CHUNK, max_replays, True)
    return lambda place, _: spark_calls.read(place.topic, reading, 0, 0, CHUNK)


def read(place: Place) -> list[bytes]:
    """Let a query have read a chunk; return its contents."""
    store(place)
    return run(place.client, chunk()(place, None)).contents


def put_back(place: Place) -> None:
    """Let a sweep have put back what a query had read."""
    names = read(place)
    place.client.delete(place.keys.prepare)
    place.zset(place.keys.store, names, 5, 0)


def failed_before(place: Place) -> None:
    """Let a query have read what had failed before, each at a time of its own."""
    names = store(place)
    place.zset(place.keys.store, names, 1, 0)
    failures = {name: failure(number) for number, name in enumerate(names)}
    place.client.hset(place.keys.error, mapping=failures)
    run(place.client, chunk()(place, None))


def swept(place: Place) -> None:
    """Let sweeps have put back what a query had read, as expired."""
    names = read(place)
    score = int(place.client.zscore(place.keys.prepare, names[0]) or 0)
    place.client.delete(place.keys.prepare)
    place.zset(place.keys.store, names, score % 1000, 0)
    expiry = f'{{"claim":"{score}","merged":"0","type":"LeaseExpired"}}'
    place.client.hset(place.keys.error, mapping=dict.fromkeys(names, expiry))


REFUSE = partial(on, spark_calls.refuse_contents, Claim(DRIVER, 1, 0))
SETTLE = {verb: on(spark_calls.settle, DRIVER, 1, 0, verb) for verb in ("ack", "renew")}

QUERIES = [
    small("spark_enter", "a driver", empty, lambda place, _: spark_calls.enter(place.topic, "q")),
    case("spark_read", "a chunk", store, chunk()),
    case("spark_read", "a replay", read, chunk(AGAIN)),
    case("spark_read", "a replay of what a sweep has put back", put_back, chunk(AGAIN)),
    case("spark_read", "a replay that buries all", failed_before, chunk(AGAIN), max_retries=1),
    case("spark_read", "a replay that puts half back", read, chunk(AGAIN, 0)),
    case("spark_settle", "an ack", read, SETTLE["ack"]),
    case("spark_settle", "an ack of what sweeps have put back", swept, SETTLE["ack"]),
    case("spark_settle", "a renewal", read, SETTLE["renew"]),
    case("spark_forget", "a chunk", read, on(spark_calls.forget, DRIVER, 1, 0)),
    case("spark_refuse", "a chunk", read, REFUSE(How(None, "ValueError", "bad"), FILLED)),
    case("spark_scan", "a step", lambda place: place.dead(5_000),
         on(spark_calls.read_place, "dead", "scan", "0", MAX_BATCH)),
    case("spark_scan", "1,000 by name", bury, on(spark_calls.read_place, "dead", "named", contents=FILLED)),
]  # fmt: skip

# --- streams


def groups(place: Place) -> None:
    """Make as many groups as a stream may have, but one."""
    place.entries(10)
    for index in range(streams.MAX_GROUPS - 1):
        place.client.xgroup_create(place.keys.store, f"g{index}", "0")


def pending(number: int = MAX_BATCH, times: int = 1) -> Fill:
    """Return what lets a consumer hold entries."""
    return lambda place: place.pending(number, times=times)


def lost(times: int) -> Fill:
    """Return what lets another consumer hold entries for too long."""
    return lambda place: place.pending(MAX_BATCH, times=times, idle_ms=10**8, holder="other")


def out_of_order(place: Place, number: int) -> list[tuple[bytes, int]]:
    """Let a consumer hold twice as many entries; return acks of every other one."""
    return acks(place.pending(2 * number)[::2])


def retry(place: Place, ids: Sequence[str]) -> None:
    """Let entries wait for a retry that is due."""
    names = [f"{ms}-{int(sequence):020}".encode() for ms, _, sequence in (each.partition("-") for each in ids)]
    place.zset(place.own.retry, names, 1, 0)


def acks(ids: Sequence[str]) -> list[tuple[bytes, int]]:
    """Return acks of entries."""
    return [(each.encode(), 1) for each in ids]


def nacked(verb: str) -> Fill:
    """Return what lets a consumer hold entries, and nacks them."""
    return lambda place: Outcomes(nacks=nacks(acks(place.pending(NACK_BATCH)), verb))


def all_entries(place: Place) -> Outcomes:
    """Let entries have expired, wait and be dead; return outcomes of others."""
    ids = place.pending(3 * MAX_BATCH + core.PIGGYBACKED_NACKS)
    dying, rest = ids[:MAX_BATCH], ids[MAX_BATCH:]
    nacked, others = rest[: core.PIGGYBACKED_NACKS], rest[core.PIGGYBACKED_NACKS :]
    place.client.xclaim(place.keys.store, ME.group, "other", message_ids=dying, **GONE)
    place.client.xclaim(place.keys.store, ME.group, "(waiting)", 0, others[1::2], retrycount=1, justid=True)
    retry(place, others[1::2])
    place.zset(place.own.dead, place.failures(place.names(2_000), place.own.reason), 1)
    place.entries(MAX_BATCH)
    return Outcomes(acks=acks(others[::2]), nacks=nacks(acks(nacked), "bury"))


def many_streams(place: Place) -> None:
    """Fill as many slots as a claim has."""
    for slot in range(SLOTS_A_CLAIM):
        place.go_to(slot)
        ids = place.pending(40, idle_ms=10**8, holder="other")
        place.client.xclaim(place.keys.store, ME.group, "other", message_ids=ids[::2], **GONE)
        place.entries(10)


def claim_streams(place: Place, _: Any) -> Call[Any]:
    """Claim from as many slots as a claim has."""
    return streams.stream_claims(place.topic, ME)([ClaimPart(slot, 10) for slot in range(SLOTS_A_CLAIM)])


def whole_pages(place: Place) -> Outcomes:
    """Claim as often as a call settles whole claims."""
    place.joined(MAX_BATCH)
    page = claim_group(place.topic, 0, ME, MAX_BATCH // core.WHOLE_BATCH, own=True)
    return Outcomes(whole=[run(place.client, page).own for _ in range(core.WHOLE_BATCH)])


def small_and_large(place: Place) -> None:
    """Append small entries, then large ones."""
    place.append(200)
    place.entries(64)


def untold_entries(place: Place) -> None:
    """Bury entries, some of which have been reported."""
    place.dead_entries(MAX_BATCH)
    place.zset(place.own.dead, place.client.zrange(place.own.dead, 0, -1), place.now_ms - 1_000_000)
    place.client.hset(place.own.group, mapping=TOLD_BEFORE)


def moved(place: Place) -> str:
    """Let a group have read all; return its last entry."""
    last = place.joined(MAX_BATCH)[-1]
    place.client.xgroup_setid(place.keys.store, ME.group, last)
    return last


GROUP = ME.group
CLAIM_ENTRIES, RESUME = on(claim_group, ME, MAX_BATCH), on(streams.resume, ME, core.RESUME_BATCH)
SETTLE_ENTRIES, REDRIVE_ENTRIES = on(settle_group, ME, FILLED), on(dead.redrive_entries, GROUP, FILLED)
PAGE = on(streams.read_range, "-", "+", MAX_BATCH, down=False)
TRIM = on(streams.trim, Retention(max_length=0, approximate=False), now=True)
WALK = on(spark_calls.walk, GROUP, spark_calls.Reach("0-0", "+", MAX_BATCH, 1 << 40, True))


def joined(place: Place) -> list[str]:
    """Let a group join a stream of as many entries as a call takes; return their ids."""
    return place.joined(MAX_BATCH)


STREAMS = [
    case("stream_send", "1,000", batch(), send, S),
    small("stream_join", "among the most groups", groups, on(streams.join, "h", "all"), S),
    case("stream_claim", "1,000 new", joined, CLAIM_ENTRIES, S),
    case("stream_claim", "new ones, large behind small", lambda place: place.joined(64, 200), CLAIM_ENTRIES, S),
    case("stream_claim", "expired ones", lost(1), CLAIM_ENTRIES, S),
    case("stream_claim", "expired ones that die", lost(99), CLAIM_ENTRIES, S),
    case("stream_claim", "retries that are due",
         lambda place: retry(place, place.pending(MAX_BATCH, holder="(waiting)")), CLAIM_ENTRIES, S),
    case("stream_settle", "nacks", nacked("retry"), SETTLE_ENTRIES, S),
    case("stream_settle", "nacks that bury", nacked("bury"), SETTLE_ENTRIES, S, most=PORTION),
    case("stream_settle", "acks out of order",
         lambda place: Outcomes(out_of_order(place, MAX_BATCH)), SETTLE_ENTRIES, S),
    small("stream_claim", "everything at once", all_entries, on(claim_group, ME, MAX_BATCH, FILLED), S, max_dead=1),
    case("stream_claim", "as many slots as a call has", many_streams, claim_streams, S, most=24, slots=1_024),
    case("stream_settle", "the most whole claims", whole_pages, SETTLE_ENTRIES, S),
    case("stream_extend", "the most, out of order",
         lambda place: out_of_order(place, claims.STREAM_RENEWALS), on(streams.extend, ME, FILLED), S),
    small("stream_look", "64 slots", empty, lambda place, _: streams.look(place.topic, range(64), GROUP), S, slots=64),
    case("stream_trim", "all", lambda place: place.entries(5_000), TRIM, S, most=1_000),
    case("stream_delete", "the most", lambda place: place.entries(CONTROL_BATCH), on(streams.delete, FILLED), S),
    case("stream_range", "a page", lambda place: place.entries(MAX_BATCH), PAGE, S),
    case("stream_range", "a page, large behind small", small_and_large, PAGE, S),
    small("stream_stats", "a slot", pending(100), on(streams.stats), S),
    case("spark_walk", "the most", joined, WALK, S),
    small("spark_position", "a slot", joined, on(spark_calls.position, GROUP, "driver"), S),
    small("spark_advance", "a slot", lambda place: joined(place)[-1],
          on(spark_calls.advance, GROUP, "driver", FILLED, MAX_BATCH, 0), S),
    case("spark_trim", "a slot", moved, on(spark_calls.trim, GROUP, "driver", FILLED), S, most=1_000),
    small("take_lock", "a run", empty,
          lambda place, _: spark_calls.lock_run(place.topic, GROUP, "run", 1_000, keep=False), S),
    small("stream_group", "a slot", pending(100), on(streams.group_stats, GROUP), S),
    small("stream_consumers", "a slot", pending(100), on(streams.consumers, GROUP), S),
    small("stream_pending", "a page", pending(), on(streams.pending, GROUP, "-", MAX_BATCH, ""), S),
    small("stream_forget", "a consumer that holds much", pending(),
          on(streams.forget, GROUP, ME.consumer, 0, NACK_BATCH), S),
    small("stream_resume", "what is given back", pending(), RESUME, S),
    case("stream_resume", "what dies", pending(times=99), RESUME, S),
    case("stream_move_group", "behind the first entry", lambda place: place.pending(MAX_BATCH)[0],
         on(streams.move_group, GROUP, FILLED, through=True), S),
    small("stream_drop_group", "with 1,000 pending", pending(), on(streams.drop_group, GROUP), S),
    case("stream_list_dead", "a page", lambda place: place.dead_entries(MAX_BATCH),
         on(dead.list_dead, 0, NACK_BATCH, GROUP), S),
    case("stream_untold_dead", "a page", untold_entries, on(dead.untold, TURN, core.AT_ONCE, GROUP), S),
    case("stream_redrive", "what is in the stream", lambda place: place.dead_entries(NACK_BATCH), REDRIVE_ENTRIES, S),
    case("stream_redrive", "copies of what was trimmed", lambda place: place.dead_entries(NACK_BATCH, trimmed=True),
         REDRIVE_ENTRIES, S),
]  # fmt: skip

TABLES = [*SENDING, *CLAIMING, *STEERING, *QUERIES, *STREAMS]
