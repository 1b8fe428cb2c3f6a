"""Checks that all options have an effect on a read or write of `format("rmq")`, before it begins."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from rmq import DigestAuth, Tls, Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.options import Options, Use
from rmq.spi import zookeeper_access as access_by_options

_OF_STREAMS = frozenset("group start first last ranges states_of".split())
_OF_QUEUES = frozenset("snapshot atomic_limit chunk_size".split())
_NOT_OF_LOGS = frozenset(
    "first ranges states_of pushdown max_replays fail_on_lease_lost min_messages max_delay_ms".split()
)


def check_read(options: Options) -> None:
    """Raise an error for options that have no effect on a read.

    Raises:
        InvalidValueError: An option of writes differs from its default.
    """
    for name in given(options, fields_for("write")):
        raise InvalidValueError(f"{name} is an option of writes and has no effect on a read: remove it")


def check_sink(options: Options) -> None:
    """Raise an error for options that have no effect on a write.

    Raises:
        InvalidValueError: An option of reads differs from its default.
    """
    for name in given(options, fields_for("read", "batch", "stream", "worker", "group")):
        raise InvalidValueError(f"{name} is an option of reads and has no effect on a write: remove it")
    for name in given(options, fields_for("selection")):
        raise InvalidValueError(
            f"{name} is an option of reads. A write goes to the topic of option topic, or each row to the "
            "topic in its column topic, and uses the columns of its frame"
        )


def check_batch(options: Options) -> None:
    """Raise an error for options that have no effect on a batch read.

    Raises:
        InvalidValueError: An option of writes or of streaming queries differs from its default.
    """
    check_read(options)
    for name in given(options, fields_for("stream", "worker")):
        raise InvalidValueError(f"{name} is an option of readStream and has no effect on spark.read: remove it")
    if given(options, fields_for("group")):
        raise InvalidValueError(
            "group and start are options of readStream. With spark.read, use statesOf for the state of "
            "each entry in a group, and first for the first entry of a range"
        )
    if options.ranges is not None and given(options, ("first", "last")):
        raise InvalidValueError("ranges already sets the first and last entry of each slot: remove first and last")
    if options.ranges is not None and given(options, ("topics", "topic_pattern")):
        raise InvalidValueError("ranges needs a single topic: set topic, and remove topics and topicPattern")


def check_source(options: Options) -> None:
    """Raise an error for options that have no effect on a streaming query.

    Raises:
        InvalidValueError: An option has no effect on the query, or the topic is missing.
    """
    check_read(options)
    for name in given(options, fields_for("batch") | {"chunk_size"}):
        raise InvalidValueError(f"{name} is an option of spark.read and has no effect on readStream: remove it")
    if options.queue != "backlog":
        raise InvalidValueError(f"readStream reads the backlog only; use spark.read for queue {options.queue}")
    if not options.several:
        options.needed_topic()
    zookeeper_access(options)


def zookeeper_access(options: Options) -> tuple[DigestAuth | None, Tls | None]:
    """Return the login and TLS settings of a query for ZooKeeper; the TLS files are on the driver.

    Raises:
        InvalidValueError: The password is not set in the driver's environment, or a file does not exist.
    """
    names = {"zookeeperCa": options.zookeeper_ca, "zookeeperCert": options.zookeeper_cert}
    files = {**names, "zookeeperKey": options.zookeeper_key}
    return access_by_options(options.zookeeper_user, "zookeeperUser", files)


def check_topic(topic: Topic, options: Options) -> None:
    """Raise an error for options that have no effect on reads of this type of topic.

    Raises:
        InvalidValueError: An option has no effect.
    """
    stream = topic.type is TopicType.STREAM
    if stream and options.queue != "backlog":
        raise InvalidValueError(
            f"topic {topic.name} is STREAM and has no queue {options.queue}: remove option queue. With "
            "statesOf, a read shows which entries are in flight, waiting or dead for a group",
            topic=topic.name,
        )
    for name in given(options, _OF_QUEUES if stream else _OF_STREAMS):
        others = "topics of other types" if stream else "STREAM topics"
        text = f"topic {topic.name} is {topic.type.name}; option {name} is for {others}"
        raise InvalidValueError(text, topic=topic.name)


def check_log_source(topic: Topic, options: Options) -> None:
    """Raise an error for options that have no effect on a streaming query on a STREAM topic.

    Raises:
        InvalidValueError: An option has no effect on the query, or the group is missing.
    """
    check_read(options)
    check_topic(topic, options)
    options.needed_group(topic)
    for name in given(options, fields_for("worker") | _NOT_OF_LOGS):
        raise InvalidValueError(f"readStream of a STREAM topic has no option {name}: remove it", topic=topic.name)


def check_replays(topic: Topic, options: Options) -> None:
    """Raise an error if a batch would be replayed more often than its messages may be retried.

    Raises:
        InvalidValueError: `maxReplays` is too large: the messages would die before their batch is halved.
    """
    most = max(0, topic.max_retries - 1)
    if options.max_replays is not None and options.max_replays > most:
        raise InvalidValueError(
            f"maxReplays is {options.max_replays}; on topic {topic.name}, whose max_retries is {topic.max_retries}, "
            f"it must be from 0 to {most}, or messages would become dead before their batch is halved",
            topic=topic.name,
        )


def check_values(topic: Topic, options: Options) -> None:
    """Raise an error for an option for topics of another type, if all rows go to this topic.

    Raises:
        InvalidValueError: `time_range` is set but the topic is not RANGE_MERGE, or `priority` but it is not PRIORITY.
    """
    ranged, ranked = (topic.type is kind for kind in (TopicType.RANGE_MERGE, TopicType.PRIORITY))
    what = f"but topic {topic.name} is {topic.type.name}: the option is for"
    if options.time_range_ms is not None and not ranged:
        text = f"time_range is {options.time_range_ms} ms, {what} RANGE_MERGE topics"
        raise InvalidValueError(text, topic=topic.name)
    if options.priority is not None and not ranked:
        raise InvalidValueError(f"priority is {options.priority}, {what} PRIORITY topics", topic=topic.name)


def fields_for(*uses: Use) -> frozenset[str]:
    """Return the names of the fields of options for these uses."""
    return frozenset(option.name for option in fields(Options) if option.metadata["of"] in uses)


def given(options: Options, names: Collection[str]) -> list[str]:
    """Return the documented names of those of the given options that differ from their defaults."""
    known = [option for option in fields(Options) if option.name in names]
    return [option.metadata["name"] for option in known if getattr(options, option.name) != option.default]
