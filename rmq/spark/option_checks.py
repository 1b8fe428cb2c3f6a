"""Which options a use of `format("rmq")` has no use for: told before anything is read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from rmq._model.topics import Topic, TopicType
from rmq.errors import InvalidValueError
from rmq.spark.options import Options

_OF_SINKS = frozenset(
    "type slots durability replicas time_range_ms priority pipeline_depth merge merge_rows idempotent once mark_ttl_s "
    "txn_app txn_version redrive trust_slot max_rate when_passed bad_rows bad_rows_path".split()
)
_OF_READS = frozenset("topics topic_pattern columns".split())
_OF_STREAMS = frozenset("group start first last ranges states_of".split())
_NOT_OF_LOGS = frozenset(
    "first ranges states_of lease_s max_replays fail_on_lease_lost snapshot min_messages max_delay_ms".split()
)


def check_read(options: Options) -> None:
    """Refuse options that would have no effect on a read.

    Raises:
        InvalidValueError: An option of the sinks, other than by default.
    """
    for name in _given(options, _OF_SINKS):
        raise InvalidValueError(f"{name} is an option of the sinks, and a read has no use for it: leave it out")


def check_sink(options: Options) -> None:
    """Refuse options that say which topics and columns a read has.

    Raises:
        InvalidValueError: One is given.
    """
    for name in _given(options, _OF_READS):
        raise InvalidValueError(
            f"{name} is an option of reads; a write goes to one topic, or each row to that of its column topic, and "
            "takes the columns of its frame"
        )


def check_batch(options: Options) -> None:
    """Refuse options that would have no effect on a batch read.

    Raises:
        InvalidValueError: An option of the sinks, or of a query's group.
    """
    check_read(options)
    if _given(options, ("group", "start")):
        raise InvalidValueError(
            "group and start are options of readStream; with spark.read, statesOf tells what a group has done, and "
            "first is where a range begins"
        )
    if options.ranges is not None and _given(options, ("first", "last")):
        raise InvalidValueError("ranges says where each slot begins and ends: leave first and last out")
    if options.ranges is not None and _given(options, ("topics", "topic_pattern")):
        raise InvalidValueError("ranges names slots of one topic: give topic, and leave topics and topicPattern out")


def check_source(options: Options) -> None:
    """Refuse what the streaming source cannot do.

    Raises:
        InvalidValueError: An option that it does not take, or the topic is missing.
    """
    check_read(options)
    if options.lease_s is not None:
        raise InvalidValueError("readStream takes no leaseSeconds: the topic's lease counts, and the driver renews it")
    if options.queue != "backlog":
        raise InvalidValueError(f"readStream drains the backlog, not {options.queue}; spark.read reads that")
    if not options.several:
        options.needed_topic()


def check_topic(topic: Topic, options: Options) -> None:
    """Refuse options that no read of this type of topic has a use for.

    Raises:
        InvalidValueError: It names the option.
    """
    stream = topic.type is TopicType.STREAM
    if stream and options.queue != "backlog":
        raise InvalidValueError(
            f"topic {topic.name} is STREAM and has no queue {options.queue}: leave option queue out; with statesOf a "
            "read tells which entries are in flight, waiting or dead for a group",
            topic=topic.name,
        )
    for name in () if stream else _given(options, _OF_STREAMS):
        text = f"topic {topic.name} is {topic.type.name}; option {name} is for STREAM topics"
        raise InvalidValueError(text, topic=topic.name)


def check_log_source(topic: Topic, options: Options) -> None:
    """Refuse what the streaming source of STREAM topics cannot do.

    Raises:
        InvalidValueError: An option that it does not take, or the group is missing.
    """
    check_read(options)
    check_topic(topic, options)
    options.needed_group(topic)
    for name in _given(options, _NOT_OF_LOGS):
        raise InvalidValueError(f"readStream of a STREAM topic takes no {name}: leave it out", topic=topic.name)


def _given(options: Options, names: Collection[str]) -> list[str]:
    """Return which of some options have another value than by default, as the documentation names them."""
    known = [option for option in fields(Options) if option.name in names]
    return [option.metadata["name"] for option in known if getattr(options, option.name) != option.default]
