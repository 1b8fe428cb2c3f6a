"""Mistakes in writes: each ends on the driver, in one line that names it, before anything is sent."""

from __future__ import annotations

import pytest

from rmq import Topic
from rmq.errors import TopicMismatchError, UnknownTopicError, UnsafeRedisError
from tests.support.spark_mistakes import CLICKS, FULL, IMAGE, MAIL, OFFER, STATE, STOCK, Driver, case_name
from tests.support.spark_mistakes import Mistake as M

Mistakes = dict[Topic | None, list[M]]

MERGED, RANGED, RANKED = (
    "content string, value double",
    "content string, time_range long",
    "content string, priority int",
)
TEXT = "content string"
DEAD = "slot int, content binary, died timestamp"
PLAIN = {"type": "RANGE_MERGE", "slots": 8}
REDRIVE = {"redrive": True}
NAMED = "topic string, content string"
STOCKED = "content string, value double"

BOTH: Mistakes = {
    IMAGE: [
        M("format rmq has no option badrow; did you mean badRows\\?", {"badRow": "collect"}),
        M("format rmq has no option content: content is a column of the frame", {"content": "item:7"}),
        M("path is '/queues/images'; format rmq has no paths", {"path": "/queues/images"}),
        M("queue is an option of reads and has no effect on a write", {"queue": "dead"}),
        M("maxMessagesPerTrigger is an option of reads", {"maxMessagesPerTrigger": 9}),
        M("failOnDataLoss is an option of reads", {"failOnDataLoss": False}),
        M("zookeeper is an option of reads", {"zookeeper": "zk:2181"}),
        M("format rmq has no option leaseSeconds", {"leaseSeconds": 9}),
        M("columns is an option of reads. A write goes", {"columns": "content"}),
        M(
            "registered as RANGE_MERGE with 8 slots, not as PRIORITY with 8",
            {**PLAIN, "type": "PRIORITY"},
            error=TopicMismatchError,
        ),
        M("registered as RANGE_MERGE with 8 slots, not .* with 16", {**PLAIN, "slots": 16}, error=TopicMismatchError),
        M("time_range is '5 seconds'; it must be a duration such as", {"time_range": "5 seconds"}, TEXT),
        M("time_range is '-5s'; it must be a duration", {"time_range": "-5s"}, TEXT),
        M("time_range is '0'; it must be more than 0", {"time_range": 0}, TEXT),
        M("time_range is '200000d'; it must lie between 0 and 100 years", {"time_range": "200000d"}, TEXT),
        M("priority is 5, but topic typed-image is RANGE_MERGE: .* PRIORITY topics", {"priority": 5}),
        M("merge is 'all': a sink cannot move rows between partitions", {"merge": "all"}),
        M("merge is 'yes'; it must be one of partition, none", {"merge": "yes"}),
        M(
            "mergeRows is 9, but merge is none, which buffers no rows to merge: remove mergeRows",
            {"merge": "none", "mergeRows": 9},
        ),
        M("chunkSize is '1001'; it must be a whole number from 1 to 1000", {"chunkSize": 1001}),
        M("pipelineDepth is '65'; it must be a whole number from 1 to 64", {"pipelineDepth": 65}),
        M("maxRate is '100/s'; it must be a number of messages per second", {"maxRate": "100/s"}),
        M("maxRate is '0'; it must be a number of messages per second from 0.001 to", {"maxRate": 0}),
        M("badRows is 'ignore'; it must be one of fail, collect", {"badRows": "ignore"}),
        M("badRows=collect needs badRowsPath", {"badRows": "collect"}),
        M("badRowsPath is '/tmp/bad', but badRows is fail: the folder", {"badRowsPath": "/tmp/bad"}),
        M("badRowsPath is 'b/d'; it must be an absolute path", {"badRows": "collect", "badRowsPath": "b/d"}),
        M("badRowsPath is 's3a://b/d'; it must be", {"badRows": "collect", "badRowsPath": "s3a://b/d"}),
        M("badRowsPath is '.*', which is a file", {"badRows": "collect", "badRowsPath": __file__}),
        M("whenPassed is 'now', but topic typed-image is RANGE_MERGE", {"whenPassed": "now"}),
        M("durability is 'sync'; it must be one of memory, replicated, fsync", {"durability": "sync"}),
        M("replicas is 0; durability replicated needs at least 1", {"durability": "replicated", "replicas": 0}),
        M("replicas is 2, but durability memory waits for no replica", {"replicas": 2}),
        M("durability fsync needs .*AOF", {"durability": "fsync"}, error=UnsafeRedisError),
        M("deadlineSeconds is '0'; it must be from 1 to 86400 seconds", {"deadlineSeconds": 0}),
        M("markTtlSeconds is '5'; it must be from 60 to", {"idempotent": True, "markTtlSeconds": 5}),
        M("idempotent is 'yes'; it must be true or false", {"idempotent": "yes"}),
        M("txnAppId and txnVersion are needed together: set both", {"txnAppId": "mail"}),
        M("txnAppId and txnVersion are needed together: set both", {"txnVersion": 1}),
        M("txnVersion is '7.0'; it must be a whole number from 0", {"txnAppId": "mail", "txnVersion": 7.0}),
        M("txnVersion is '-1'; it must be a whole number from 0", {"txnAppId": "mail", "txnVersion": -1}),
        M("trustSlot is 'maybe'; it must be true or false", {"trustSlot": "maybe"}),
        M("trustSlot needs columns slot", {"trustSlot": True}),
        M(
            "column 'item' is not a column of topic typed-image, .*; the topic takes content",
            {},
            "item string, time_range long",
        ),
        M("column 'timerange' is not a column of topic typed-image", {}, f"{RANGED}, timerange long"),
        M("column 'value' is not a column of topic typed-image", {}, f"{RANGED}, value double"),
        M("column 'fields' is not a column of topic typed-image", {}, f"{RANGED}, fields string->string"),
        M("column content is missing for topic typed-image, .*; the frame has time_range", {}, "time_range long"),
        M("column time_range is missing for topic typed-image, which is RANGE_MERGE", {}, TEXT),
        M(
            "column time_range is string; .* one of byte, short, integer, long, interval",
            {},
            f"{TEXT}, time_range string",
        ),
        M("column content is int; .* it must be one of string, binary", {}, "content int, time_range long"),
        M("column body is void; .* it must be one of string, binary", {}, f"{RANGED}, body void"),
        M("column slot is string; .* it must be one of", {}, f"{RANGED}, slot string"),
        M("column slot_basis is int;", {}, f"{RANGED}, slot_basis int"),
    ],
    MAIL: [
        M("time_range is 5000 ms, but topic typed-mail is PRIORITY", {"time_range": "5s"}),
        M("priority is 'high'; it must be a whole number from 1", {"priority": "high"}, TEXT),
        M("option priority is 2000000; on topic typed-mail it must be from", {"priority": 2_000_000}, TEXT),
        M("column priority is missing for topic typed-mail, which is PRIORITY", {}, TEXT),
        M("column priority is decimal\\(10,2\\);", {}, f"{TEXT}, priority decimal"),
        M("column 'c0' is not a column of topic", {}, ", ".join([RANKED, *(f"c{i} string" for i in range(80))])),
    ],
    OFFER: [
        M("format rmq has no option fixed_time: fixed_time is a column", {"fixed_time": "5m"}, TEXT),
        M("whenPassed is 'later'; it must be one of fail, now, collect", {"whenPassed": "later"}),
        M("whenPassed=collect needs badRows=collect and badRowsPath", {"whenPassed": "collect"}),
        M("column fixed_time is missing for topic typed-offer", {}, TEXT),
        M("column fixed_time is date; .* timestamp", {}, f"{TEXT}, fixed_time date"),
        M("column fixed_time is timestamp_ntz; .* timestamp", {}, f"{TEXT}, fixed_time timestamp_ntz"),
    ],
    CLICKS: [
        M("group is an option of reads", {"group": "billing"}),
        M("topic typed-clicks is STREAM, and its entries are never merged", {"merge": "partition"}),
        M(
            "column fields is map<string,int>; .* it must be map from string to string or binary",
            {},
            "fields string->int",
        ),
        M("has no content or body: drop", {}, f"{TEXT}, fields string->string"),
        M("column content is missing for topic typed-clicks", {}, "body string"),
    ],
    STOCK: [
        M("txnAppId cannot be combined with once", {"txnAppId": "a", "txnVersion": 1, "once": "b"}),
        M("column value is string; for topic typed-stock, .* merges by Sum", {}, f"{TEXT}, value string"),
        M("column body is missing for topic typed-stock", {}, TEXT),
        M("column weight is double", {}, f"{MERGED}, weight double"),
    ],
    STATE: [M("column version is missing", {}, f"{RANKED}, body string")],
    None: [
        M("option `topic` is missing: .*, or add a column topic"),
        M(
            "topic typed-images is not registered; .*, or a write with type and slots",
            {"topic": "typed-images"},
            error=UnknownTopicError,
        ),
        M("topics is an option of reads. A write goes to the topic", {"topics": "typed-image"}),
        M("topicPattern is an option of reads", {"topicPattern": "typed-.*"}),
        M("a new topic needs options topic, type and slots: set slots", {"topic": "new", "type": "STREAM"}),
        M("options topic, type and slots: set type", {"topic": "new", "slots": 8}),
        M("type is 'FIFO'; it must be one of RANGE_MERGE, PRIORITY", {**PLAIN, "topic": "new", "type": "FIFO"}),
        M("slots of topic new is 6; it must be a power of two", {**PLAIN, "topic": "new", "slots": 6}),
        M("slots is '0'; it must be a whole number from 1", {**PLAIN, "topic": "new", "slots": 0}),
        M("column time_range is missing", {**PLAIN, "topic": "new"}, TEXT),
        M("column 'prio' is not a column of topic new", {**PLAIN, "topic": "new"}, f"{RANGED}, prio int"),
        M("priority is 7, but topic new is RANGE_MERGE", {**PLAIN, "topic": "new", "priority": 7}),
        # rows that name their topics
        M("column topic is int; it must be string", {}, f"topic int, {TEXT}"),
        M("options type and slots need option topic", PLAIN, NAMED),
        M("column 'prioritty' is not a column of any topic", {}, f"{NAMED}, prioritty int"),
        M("rows that name topics need column content, or fields", {}, "topic string, priority int"),
        M("column content is int; for rows that name their topics, it must be", {}, "topic string, content int"),
        M("column priority is string; for rows that name their topics", {}, f"{NAMED}, priority string"),
        M("trustSlot needs columns slot", {"trustSlot": True}, NAMED),
    ],
}

WRITES: Mistakes = {
    IMAGE: [
        M("idempotent is for writeStream, and for topics with merge=.* set txnAppId", {"idempotent": True}),
        M("once is 'load'; it can be used only on topics with merge=", {"once": "load"}),
        M("column died is missing: a redrive on topic typed-image needs", REDRIVE, "slot int, content string"),
        M("column died is string: a redrive", REDRIVE, "slot int, content string, died string"),
        M("redrive cannot be combined with merge: it moves", {**REDRIVE, "merge": "none"}, DEAD),
        M("redrive cannot be combined with type, slots", {**REDRIVE, **PLAIN}, DEAD),
        M("topic typed-image is RANGE_MERGE and has due times, not priorities", {**REDRIVE, "priority": 5}, DEAD),
        M("redrive is '1'; it must be true or false", {"redrive": 1}, DEAD),
    ],
    MAIL: [M("typed-mail is PRIORITY and has priorities, not due times", {**REDRIVE, "time_range": "5s"}, DEAD)],
    CLICKS: [M("topic typed-clicks is STREAM: redrive its dead entries with", REDRIVE, DEAD)],
    STOCK: [
        M("once is 'load'; .* not with idempotent=false", {"once": "load", "idempotent": False}),
        M(
            r"topic typed-stock counts every send, and a write with once .*rmq\.spark\.keyed",
            {"once": "load"},
            STOCKED,
        ),
        M("a write with txnAppId may send rows twice", {"txnAppId": "a", "txnVersion": 1}, STOCKED),
    ],
    FULL: [M("txnAppId cannot be used on topic typed-full", {"txnAppId": "a", "txnVersion": 1})],
    None: [M("topic typed-imag is not registered", {**REDRIVE, "topic": "typed-imag"}, DEAD, error=UnknownTopicError)],
}

STREAM_WRITES: Mistakes = {
    IMAGE: [
        M("redrive is not available with writeStream", REDRIVE, DEAD),
        M("once and txnAppId are .* identified by its checkpoint", {"txnAppId": "a", "txnVersion": 1}),
    ],
    STOCK: [
        M("once and txnAppId are options of write", {"once": "load"}),
        M("topic typed-stock counts every send, and a streaming query may send rows twice", {}, STOCKED),
    ],
    FULL: [M("idempotent cannot be used on topic typed-full", {"idempotent": True})],
}


def cases(*tables: Mistakes) -> list[tuple[Topic | None, M]]:
    """Return each mistake with its topic."""
    return [(topic, mistake) for table in tables for topic, mistakes in table.items() for mistake in mistakes]


@pytest.mark.parametrize(("topic", "mistake"), cases(BOTH, WRITES), ids=case_name)
def test_a_write(driver: Driver, topic: Topic | None, mistake: M) -> None:
    driver.refuses(Driver.write, topic, mistake)


@pytest.mark.parametrize(("topic", "mistake"), cases(BOTH, STREAM_WRITES), ids=case_name)
def test_a_streaming_write(driver: Driver, topic: Topic | None, mistake: M) -> None:
    driver.refuses(Driver.write_stream, topic, mistake)


def test_a_live_queue_is_not_overwritten(driver: Driver) -> None:
    way_out = 'mode\\("overwrite"\\) would delete the messages of a live queue; use mode\\("append"\\)'
    driver.refuses(Driver.write, IMAGE, M(way_out), overwrite=True)
    driver.refuses(
        Driver.write_stream,
        IMAGE,
        M('outputMode\\("complete"\\) would delete the messages of a live queue'),
        overwrite=True,
    )


@pytest.mark.parametrize("topic", [IMAGE, MAIL, OFFER, CLICKS, STOCK, STATE, FULL], ids=case_name)
def test_what_fits_is_taken(driver: Driver, topic: Topic) -> None:
    driver.write(topic, M(""))
    # where each send counts a stream has to be keyed
    driver.write_stream(topic, M("", {"idempotent": False} if topic is STOCK else {}))


def test_rows_that_were_read_may_name_their_topics(driver: Driver) -> None:
    sent = "merged long, first_sent timestamp, last_sent timestamp"
    read = (
        "topic string, slot int, content binary, body binary, score long, due timestamp, retries_left int, trace string"
    )
    for columns in (f"{read}, {sent}, value double", f"{read}, {sent}, items binary[]", f"{NAMED}, priority int"):
        driver.write(None, M("", columns=columns))
