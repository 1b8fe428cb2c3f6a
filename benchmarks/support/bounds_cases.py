"""Every script at its bound, as a table: what fills a slot, and the call that is measured. `bounds` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.support.bounds_place import (
    FAILURE,
    FAR,
    ME,
    MIB,
    Fill,
    Make,
    Place,
    case,
    empty,
    of,
    on,
    put,
    run,
    small,
    then,
)
from rmq import Fixed, Merge, RangeMergeMessage, Retention, Sliding, Sum, TopicType, WhenFull
from rmq.spark import calls as spark_calls
from rmq.spark.calls import CHUNK, Claim, Driver, How, Reading, refuse_contents
from rmq.spark.marks import Mark, send_once
from tests.support.core import (
    AT_ONCE,
    CLAIM_WEIGHT,
    FREED_BYTES,
    HISTORY_LOCK_KEY,
    JOINED_MESSAGES,
    JOINED_SLOTS,
    MAX_DEFINITION_BYTES,
    MINUTES,
    MOST_SLOTS,
    MOST_WEIGHT,
    OWNERS_KEYS,
    PIGGYBACKED_NACKS,
    RESUME_BATCH,
    TOPICS_KEY,
    WHOLE_BATCH,
    WORKER_INFOS_KEY,
    WORKERS_KEY,
    Batch,
    Call,
    ClaimPart,
    EncodedMessage,
    Encoder,
    MergedSends,
    Nack,
    Outcomes,
    QueueSends,
    Turn,
    claims,
    control,
    dead,
    deletion,
    history,
    history_key,
    registry,
    search,
    sends,
    shared,
    streams,
    viewing,
)
from tests.support.one_slot import claim_group, claim_slot, settle_group, settle_slot

MAX_BATCH, NACK_BATCH, CONTROL_BATCH = claims.MAX_BATCH, claims.NACK_BATCH, claims.CONTROL_BATCH
SLOTS_A_CLAIM = MOST_WEIGHT // (CLAIM_WEIGHT + 10)
PORTION = 4
"""Bodies of 1 MiB that the nacks of one call may bury."""
LONG_TTL = "11d13h46m40s"
DRIVER, AGAIN, MARK = Driver("q", 1), Driver("q", 2), Mark("q", 1, 0, 1_000, 0, "d")
TURN, TOLD_BEFORE = Turn("n", "me", 60_000), {"told:n": "1 1 me"}
GONE: dict[str, Any] = {"min_idle_time": 0, "idle": 10**8, "retrycount": 99, "justid": True}
P, F, R, S = TopicType.PRIORITY, TopicType.FIXED_TIME, TopicType.RANGE_MERGE, TopicType.STREAM

# --- sending


def send(place: Place, messages: Sequence[EncodedMessage]) -> Call[Any]:
    """Send a batch."""
    return sends.send_calls(place.topic)(0, messages, True)


def batch(score: int = FAR, stored: int | None = None) -> Fill:
    """Return what makes as many messages as a call takes, beside as many with another score that are in the backlog."""

    def fill(place: Place) -> list[EncodedMessage]:
        if stored is not None:
            place.store(MAX_BATCH, score=stored)
        return place.messages(MAX_BATCH, score)

    return fill


def send_many(place: Place, _: Any) -> Call[Any]:
    """Send to as many slots, and as many messages, as a call has."""
    slots = range(JOINED_SLOTS)
    batches = [Batch.of([message._replace(slot=slot) for message in place.messages(JOINED_MESSAGES)]) for slot in slots]
    return QueueSends(place.topic).joined(batches, True)


def sums(place: Place) -> list[EncodedMessage]:
    """Put sums into the backlog; return as many sends that fold into them."""
    messages = [Encoder(place.topic).one(RangeMergeMessage(name, body=1)) for name in place.names(MAX_BATCH, "c")]
    place.zset(place.keys.store, [message.content for message in messages], FAR)
    place.client.hset(place.keys.body, mapping={message.content: message.body or b"" for message in messages})
    return messages


def part_call(place: Place, messages: Sequence[EncodedMessage]) -> Call[Any]:
    """Build the call of `send_many` on a topic that merges: it may take the first messages only."""
    calls = sends.send_calls(place.topic)
    assert isinstance(calls, MergedSends)
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
    case("send_merged", "1,000 that fold, a chunk of Spark", sums, of(send_once, MARK), R, merge=FIXED),
    case("send", "1,000, a chunk of Spark", batch(), of(send_once, MARK)),
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


def held(number: int, left: int = 16, age_ms: int = 0, prefix: str = "h") -> Fill:
    """Return what puts claims that have failed before into prepare."""

    def fill(place: Place) -> list[tuple[bytes, int]]:
        found = place.held(number, left, age_ms, prefix)
        place.failures([name for name, _ in found])
        return found

    return fill


def nacks(held: Sequence[tuple[bytes, int]], verb: str = "retry", number: int = 1_000) -> list[Nack]:
    """Return nacks of claims."""
    return [Nack(name, score, verb, number, "ValueError", "no" * 200) for name, score in held[:NACK_BATCH]]


def nack(verb: str = "retry", number: int = 1_000) -> Make:
    """Return what settles claims by nacks."""
    return lambda place, held: settle_slot(place.topic, 0, Outcomes(nacks=nacks(held, verb, number)))


def everything(place: Place) -> Outcomes:
    """Fill all places; return outcomes."""
    place.store(4_000)
    for prefix, left in (("a", 5), ("b", 0)):
        held(1_000, left, 10**8, prefix)(place)
    place.waiting(1_000)
    place.dead(2_000)
    acks = place.held(MAX_BATCH, prefix="e")
    nacked = place.held(PORTION if place.body_bytes else PIGGYBACKED_NACKS, 0, prefix="f")
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
    found = [(place.names(10, f"w{index:03}"), place.now_ms * 1000 - index * 1000 + 5) for index in range(WHOLE_BATCH)]
    for names, score in found:
        place.zset(place.keys.prepare, names, score, 0)
    return Outcomes(whole=[(score, 10) for _, score in found])


def expired(number: int) -> Fill:
    """Return what fills a backlog with messages that have outlived their time to live."""
    return lambda place: place.born(place.store(number))


def ack(place: Place, held: Sequence[tuple[bytes, int]]) -> Call[Any]:
    """Ack claims."""
    return settle_slot(place.topic, 0, Outcomes(held))


STORE, CLAIM, SWEEP = put(Place.store, MAX_BATCH), on(claim_slot, MAX_BATCH), on(claim_slot, 0)
OUTLIVED = "messages that outlived their time to live"

CLAIMING = [
    case("claim", "1,000 due", STORE, CLAIM),
    case("claim", "1,000 due, behind 4,000 twins in flight", twins, CLAIM),
    case("claim", "1,000 rolled back", rolled_back, CLAIM),
    case("claim", "expired claims that go back", held(2_000, 5, 10**8), SWEEP),
    case("claim", "expired claims that die", held(2_000, 0, 10**8), SWEEP),
    case("claim", "retries that are due", put(Place.waiting, 2_000), SWEEP),
    case("claim", OUTLIVED, put(Place.store, 2_000), SWEEP, F, ttl="1s"),
    case("claim", OUTLIVED, expired(2_000), SWEEP, ttl="1s"),
    small(
        "claim", "times of what has left the backlog", lambda place: place.born(place.names(20_000)), SWEEP, ttl="1s"
    ),
    case("claim", "too many dead", put(Place.dead, 2_000), SWEEP, max_dead=1, most=256),
    case("claim", "everything at once", everything, then(claim_slot, MAX_BATCH), F, most=256, ttl="1s", max_dead=1),
    case("claim", "as many slots as a call has", many_slots, claim_slots, most=16, slots=1_024),
    case("settle", "1,000 acks", held(MAX_BATCH), ack, most=FREED_BYTES // MIB),
    small("settle", "256 whole claims", whole_claims, of(settle_slot)),
    case("settle", "to retry", held(NACK_BATCH, 5), nack()),
    case("settle", "to bury", held(NACK_BATCH, 5), nack("bury"), most=PORTION),
    case("settle", "to release", put(Place.held, NACK_BATCH, 5), nack("release", 5)),
    case("extend", "1,000", put(Place.held, MAX_BATCH), of(claims.extend)),
]

# --- steering, looking, and what is of the whole Redis


def waiting_too(place: Place) -> list[bytes]:
    """Fill the backlog with messages that wait for a retry, too."""
    names = place.store(CONTROL_BATCH)
    place.zset(place.keys.retry, names, (place.now_ms // 1000 + 99) * 1000 + 3, 0)
    place.failures(names)
    return names


def redrive(place: Place, names: list[bytes]) -> Call[Any]:
    """Redrive named ones."""
    return dead.redrive(place.topic, 0, ("priority", FAR), overwrite=True, contents=names, actor="me")


def purge_dead(place: Place, names: list[bytes]) -> Call[Any]:
    """Purge named ones."""
    return dead.purge_dead(place.topic, 0, names, actor="me")


def failed(place: Place) -> None:
    """Fill the backlog with messages that have failed."""
    place.failures(place.store(MAX_BATCH))


def untold(place: Place) -> None:
    """Put dead messages, some of which have been reported."""
    place.dead(MAX_BATCH)
    place.client.hset(place.keys.meta, mapping=TOLD_BEFORE)


def in_all_places(place: Place) -> bytes:
    """Put a message into all places."""
    name = place.store(1, prefix="x")[0]
    for fill in (place.held, place.dead):
        fill(1, prefix="x")
    return name


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
    place.zset(WORKERS_KEY, names, place.now_ms - 10**9)
    place.client.hset(WORKER_INFOS_KEY, mapping=dict.fromkeys(names, b"x" * 1_000))


def plain(script: str, key: str, *args: Any) -> Call[Any]:
    """Return a call of a script that belongs to no slot."""
    return Call(script, (key,), args, lambda reply: reply, True, "t", 0)


def write_history(place: Place, _: Any) -> Call[Any]:
    """Write a minute into a full ring from a clock that was ahead."""
    minute, key = place.now_ms // 60_000, history_key("t")
    place.client.rpush(key, *(f"{minute + 10 + index} {'1 ' * 100}" for index in range(MINUTES)))
    return plain("history_write", key, f"{minute} {'1 ' * 100}", minute, MINUTES, history.KEEP_S)


def read_definitions(place: Place, _: Any) -> Call[Any]:
    """Read the most names with the longest definitions."""
    names = [f"t{index}" for index in range(registry.READ_AT_ONCE)]
    place.client.hset(TOPICS_KEY, mapping=dict.fromkeys(names, b"x" * MAX_DEFINITION_BYTES))
    return plain("registry_read", TOPICS_KEY, MAX_DEFINITION_BYTES, *names)


def define(place: Place, _: Any) -> Call[Any]:
    """Write the longest definition."""
    text = b"x" * MAX_DEFINITION_BYTES
    place.client.hset(TOPICS_KEY, "t", text)
    return plain("registry_define", TOPICS_KEY, "t", text, text)


def take_lock(_: Place, __: Any) -> Call[Any]:
    """Take the lock of a minute."""
    return shared.take_lock(HISTORY_LOCK_KEY, "minute", "me", 60_000, "period")


def list_children(place: Place, _: Any) -> Call[Any]:
    """List the owner nodes of the most slots that one worker may have."""
    place.client.hset(OWNERS_KEYS["nodes"], "", "1 1 0 0 ")
    place.client.zadd(OWNERS_KEYS["sessions"], {"1": 60_000})
    place.zset(OWNERS_KEYS["held"], [b"1\0/%05d" % number for number in range(MOST_SLOTS)], 0, step=0)
    return shared.keep_nodes(1, 60_000, ["own", "", "", ""], 0, 0, changes=False)


SEARCH = on(viewing.search, b"*", search.MOST, ("0", "0", "0", "0"))
DEAD = put(Place.dead, MAX_BATCH)

STEERING = [
    case("cancel", "the most", waiting_too, of(control.cancel, "me")),
    case("reschedule", "the most", waiting_too, of(control.reschedule, ("priority", FAR), "me"), ttl=LONG_TTL),
    case("promote", "the most", waiting_too, of(control.promote, "me"), ttl=LONG_TTL),
    case("redrive", "the most", put(Place.dead, NACK_BATCH), redrive, ttl=LONG_TTL),
    case("purge_dead", "named ones", put(Place.dead, NACK_BATCH), purge_dead, most=1_000),
    case("purge_backlog", "1,000", failed, on(control.purge_backlog, "store", MAX_BATCH), most=1_000, ttl=LONG_TTL),
    small("pause", "one slot", empty, on(control.pause, True, "me")),
    small("audit", "a line", empty, on(control.audit, "me", "purge", "all", "begun")),
    small("confirm", "one slot", empty, on(control.confirm)),
    small("adopt", "one slot", empty, on(control.adopt, "zk", "other")),
    case("peek", "a page", STORE, on(viewing.peek, "store", 0, MAX_BATCH)),
    case("list_dead", "a page", DEAD, on(dead.list_dead, 0, NACK_BATCH)),
    case("untold_dead", "a page", untold, on(dead.untold, TURN, AT_ONCE)),
    case("dead_reasons", "the largest sample", DEAD, on(dead.dead_reasons, viewing.MOST_REASONS)),
    case("find", "one in all places", in_all_places, of(viewing.find)),
    case("search", "a step", full_places, SEARCH),
    small("look", "256 slots", little_in_slots, lambda place, _: claims.look(place.topic, range(256)), slots=256),
    small("stats", "a slot", STORE, on(viewing.stats), F),
    small("worker_beat", "with others to forget", reports, lambda *_: shared.worker_beat("w", "{}", 60_000)),
    small("workers", "1,000", reports, lambda *_: shared.workers()._replace(parse=len)),
    small("take_tokens", "1,000", empty, lambda place, _: shared.take_tokens(place.topic, MAX_BATCH), max_rate=1_000),
    small("take_lock", "a minute", empty, take_lock),
    small("keeper", "the children of 16,384 slots", empty, list_children),
    small("history_write", "a full ring from a clock that was ahead", empty, write_history),
    small("registry_read", "the most names, the longest definitions", empty, read_definitions),
    small("registry_define", "the longest definition", empty, define),
    case("delete_topic", "all of a slot", failed, on(deletion.delete_slot, "d", (), force=True)),
]

# --- streaming queries


def chunk(driver: Driver = DRIVER, max_replays: int = 10) -> Make:
    """Return what reads a chunk."""
    reading = Reading(driver, 1, CHUNK, max_replays, True)
    return lambda place, _: spark_calls.read(place.topic, reading, 0, 0, CHUNK)


def read(place: Place) -> list[bytes]:
    """Let a query have read a chunk; return its contents."""
    place.store(MAX_BATCH)
    return run(place.client, chunk()(place, None)).contents


def put_back(place: Place) -> None:
    """Let a sweep have put back what a query had read."""
    names = read(place)
    place.client.delete(place.keys.prepare)
    place.zset(place.keys.store, names, 5, 0)


def failed_before(place: Place) -> None:
    """Let a query have read what had failed before, each at a time of its own."""
    names = place.store(MAX_BATCH)
    place.zset(place.keys.store, names, 1, 0)
    for number, name in enumerate(names):
        place.client.hset(place.keys.error, name, FAILURE.replace('"1"', f'"{number}"'))
    run(place.client, chunk()(place, None))


def swept(place: Place) -> None:
    """Let sweeps have put back what a query had read, as expired."""
    names = read(place)
    score = int(place.client.zscore(place.keys.prepare, names[0]) or 0)
    place.client.delete(place.keys.prepare)
    place.zset(place.keys.store, names, score % 1000, 0)
    failure = f'{{"claim":"{score}","merged":"0","type":"LeaseExpired"}}'
    place.client.hset(place.keys.error, mapping=dict.fromkeys(names, failure))


def named(place: Place, names: list[bytes]) -> Call[Any]:
    """Read dead messages by name."""
    return spark_calls.read_place(place.topic, 0, "dead", "named", contents=names)


REFUSAL = Claim(DRIVER, 1, 0), How(None, "ValueError", "bad")
SETTLE = {verb: on(spark_calls.settle, DRIVER, 1, 0, verb) for verb in ("ack", "renew")}

QUERIES = [
    small("spark_enter", "a driver", empty, lambda place, _: spark_calls.enter(place.topic, "q")),
    case("spark_read", "a chunk", STORE, chunk()),
    case("spark_read", "a replay", read, chunk(AGAIN)),
    case("spark_read", "a replay of what a sweep has put back", put_back, chunk(AGAIN)),
    case("spark_read", "a replay that buries all", failed_before, chunk(AGAIN), max_retries=1),
    case("spark_read", "a replay that puts half back", read, chunk(AGAIN, 0)),
    case("spark_settle", "an ack", read, SETTLE["ack"]),
    case("spark_settle", "an ack of what sweeps have put back", swept, SETTLE["ack"]),
    case("spark_settle", "a renewal", read, SETTLE["renew"]),
    case("spark_forget", "a chunk", read, on(spark_calls.forget, DRIVER, 1, 0)),
    case("spark_refuse", "a chunk", read, then(refuse_contents, *REFUSAL)),
    case("spark_scan", "a step", put(Place.dead, 5_000), on(spark_calls.read_place, "dead", "scan", "0", MAX_BATCH)),
    case("spark_scan", "1,000 by name", DEAD, named),
]

# --- streams


def send_entries(place: Place, messages: Sequence[EncodedMessage]) -> Call[Any]:
    """Append a batch."""
    return streams.sends(place.topic)(0, messages, True)


def groups(place: Place) -> None:
    """Make as many groups as a stream may have, but one."""
    place.entries(10)
    for index in range(streams.MAX_GROUPS - 1):
        place.client.xgroup_create(place.keys.store, f"g{index}", "0")


def pending(number: int, times: int = 1) -> Fill:
    """Return what lets a consumer hold entries."""
    return lambda place: place.pending(number, times=times)


def lost(times: int) -> Fill:
    """Return what lets another consumer hold entries for too long."""
    return lambda place: place.pending(MAX_BATCH, times=times, idle_ms=10**8, holder="other")


def out_of_order(number: int) -> Fill:
    """Return what lets a consumer hold twice as many entries, and takes every other one."""
    return lambda place: acks(place.pending(2 * number)[::2])


def retry(place: Place, ids: Sequence[str]) -> None:
    """Let entries wait for a retry that is due."""
    names = [f"{ms}-{int(sequence):020}".encode() for ms, _, sequence in (each.partition("-") for each in ids)]
    place.zset(place.own.retry, names, 1, 0)


def acks(ids: Sequence[str]) -> list[tuple[bytes, int]]:
    """Return acks of entries."""
    return [(each.encode(), 1) for each in ids]


def acked(place: Place) -> Outcomes:
    """Let a consumer hold entries; ack every other one."""
    return Outcomes(out_of_order(MAX_BATCH)(place))


def nacked(verb: str) -> Fill:
    """Return what lets a consumer hold entries, and nacks them."""
    return lambda place: Outcomes(nacks=nacks(acks(place.pending(NACK_BATCH)), verb))


def waiting_entries(place: Place) -> None:
    """Let entries wait for a retry that is due."""
    retry(place, place.pending(MAX_BATCH, holder="(waiting)"))


def move_group(place: Place, ids: list[str]) -> Call[Any]:
    """Move a group behind its first entry."""
    return streams.move_group(place.topic, 0, ME.group, ids[0], through=True)


def all_entries(place: Place) -> Outcomes:
    """Let entries have expired, wait and be dead; return outcomes of others."""
    ids = place.pending(3 * MAX_BATCH + PIGGYBACKED_NACKS)
    dying, nacked, others = ids[:MAX_BATCH], ids[MAX_BATCH:][:PIGGYBACKED_NACKS], ids[MAX_BATCH:][PIGGYBACKED_NACKS:]
    place.client.xclaim(place.keys.store, ME.group, "other", message_ids=dying, **GONE)
    place.client.xclaim(place.keys.store, ME.group, "(waiting)", 0, others[1::2], retrycount=1, justid=True)
    retry(place, others[1::2])
    place.zset(place.own.dead, place.names(2_000), 1)
    place.client.hset(place.own.reason, mapping=dict.fromkeys(place.names(2_000), FAILURE))
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
    some = [claim_group(place.topic, 0, ME, MAX_BATCH // WHOLE_BATCH, own=True) for _ in range(WHOLE_BATCH)]
    return Outcomes(whole=[run(place.client, each).own for each in some])


def small_and_large(place: Place) -> None:
    """Append small entries, then large ones."""
    place.append_small(200)
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


def trimmed(place: Place) -> list[str]:
    """Bury entries and trim them from the stream."""
    return place.dead_entries(NACK_BATCH, trimmed=True)


def last_of(place: Place) -> str:
    """Let a group join; return the last entry."""
    return place.joined(MAX_BATCH)[-1]


def advance(place: Place, last: str) -> Call[Any]:
    """Move a driver's position."""
    return spark_calls.advance(place.topic, 0, ME.group, "driver", last, MAX_BATCH, 0)


def lock_run(place: Place, _: Any) -> Call[Any]:
    """Take the lock of a run."""
    return spark_calls.lock_run(place.topic, ME.group, "run", 1_000, keep=False)


GROUP = ME.group
PENDING, JOINED, BURIED = pending(MAX_BATCH), put(Place.joined, MAX_BATCH), put(Place.dead_entries, MAX_BATCH)
CLAIM_ENTRIES, RESUME = on(claim_group, ME, MAX_BATCH), on(streams.resume, ME, RESUME_BATCH)
PAGE, FORGET = (
    on(streams.read_range, "-", "+", MAX_BATCH, down=False),
    on(streams.forget, GROUP, ME.consumer, 0, NACK_BATCH),
)
TRIM = on(streams.trim, Retention(max_length=0, approximate=False), now=True)
WALK = on(spark_calls.walk, GROUP, spark_calls.Reach("0-0", "+", MAX_BATCH, 1 << 40, True))

STREAMS = [
    case("stream_send", "1,000", batch(), send_entries, S),
    small("stream_join", "among the most groups", groups, on(streams.join, "h", "all"), S),
    case("stream_claim", "1,000 new", JOINED, CLAIM_ENTRIES, S),
    case("stream_claim", "new ones, large behind small", put(Place.joined, 64, 200), CLAIM_ENTRIES, S),
    case("stream_claim", "expired ones", lost(1), CLAIM_ENTRIES, S),
    case("stream_claim", "expired ones that die", lost(99), CLAIM_ENTRIES, S),
    case("stream_claim", "retries that are due", waiting_entries, CLAIM_ENTRIES, S),
    case("stream_settle", "nacks", nacked("retry"), then(settle_group, ME), S),
    case("stream_settle", "nacks that bury", nacked("bury"), then(settle_group, ME), S, most=PORTION),
    case("stream_settle", "acks out of order", acked, then(settle_group, ME), S),
    small("stream_claim", "everything at once", all_entries, then(claim_group, ME, MAX_BATCH), S, max_dead=1),
    case("stream_claim", "as many slots as a call has", many_streams, claim_streams, S, most=24, slots=1_024),
    case("stream_settle", "the most whole claims", whole_pages, then(settle_group, ME), S),
    case("stream_extend", "the most, out of order", out_of_order(claims.STREAM_RENEWALS), then(streams.extend, ME), S),
    small("stream_look", "64 slots", empty, lambda place, _: streams.look(place.topic, range(64), GROUP), S, slots=64),
    case("stream_trim", "all", put(Place.entries, 5_000), TRIM, S, most=1_000),
    case("stream_delete", "the most", put(Place.entries, CONTROL_BATCH), of(streams.delete), S),
    case("stream_range", "a page", put(Place.entries, MAX_BATCH), PAGE, S),
    case("stream_range", "a page, large behind small", small_and_large, PAGE, S),
    small("stream_stats", "a slot", pending(100), on(streams.stats), S),
    case("spark_walk", "the most", JOINED, WALK, S),
    small("spark_position", "a slot", JOINED, on(spark_calls.position, GROUP, "driver"), S),
    small("spark_advance", "a slot", last_of, advance, S),
    case("spark_trim", "a slot", moved, then(spark_calls.trim, GROUP, "driver"), S, most=1_000),
    small("take_lock", "a run", empty, lock_run, S),
    small("stream_group", "a slot", pending(100), on(streams.group_stats, GROUP), S),
    small("stream_consumers", "a slot", pending(100), on(streams.consumers, GROUP), S),
    small("stream_pending", "a page", PENDING, on(streams.pending, GROUP, "-", MAX_BATCH, ""), S),
    small("stream_forget", "a consumer that holds much", PENDING, FORGET, S),
    small("stream_resume", "what is given back", PENDING, RESUME, S),
    case("stream_resume", "what dies", pending(MAX_BATCH, 99), RESUME, S),
    case("stream_move_group", "behind the first entry", PENDING, move_group, S),
    small("stream_drop_group", "with 1,000 pending", PENDING, on(streams.drop_group, GROUP), S),
    case("stream_list_dead", "a page", BURIED, on(dead.list_dead, 0, NACK_BATCH, GROUP), S),
    case("stream_untold_dead", "a page", untold_entries, on(dead.untold, TURN, AT_ONCE, GROUP), S),
    case(
        "stream_redrive",
        "what is in the stream",
        put(Place.dead_entries, NACK_BATCH),
        then(dead.redrive_entries, GROUP),
        S,
    ),
    case("stream_redrive", "copies of what was trimmed", trimmed, then(dead.redrive_entries, GROUP), S),
]

CASES = [*SENDING, *CLAIMING, *STEERING, *QUERIES, *STREAMS]
