"""`rmq topics`: create, list, show and change definitions, and compare them with those of a program.

A definition is registered at its first use. If a later release of the program defines other settings, the registered
ones stay in force, and a warning is logged. A deployment applies the new settings with `diff` and `apply`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from rmq import (
    ExponentialRetry,
    LadderRetry,
    Retention,
    RetryPolicy,
    RmqClient,
    Ties,
    Topic,
    TopicType,
    UnreadableTopic,
    WhenFull,
)
from rmq.cli.console import Columns, Session, table_of
from rmq.cli.merging import Given, MergeBounds, MergeKind, changed_merge, new_merge
from rmq.cli.options import (
    TopicName,
    parse_count_or_none,
    parse_duration,
    parse_retry,
    parse_ties,
    parse_type,
    parse_when_full,
    typed,
)
from rmq.errors import InvalidValueError, TopicMismatchError, UnknownTopicError
from rmq.spi import counted, differences, span, topics_in
from rmq.views.words import dashed, merge_name, merge_words

MOST_REPORTED = 20
"""Maximum number of unreadable definitions that are reported one by one."""


def _lease(text: str, name: str) -> timedelta:
    lease, second = parse_duration(text, name), timedelta(seconds=1)
    if lease % second or not second <= lease <= timedelta(days=1):
        raise InvalidValueError(f"{name} is {text!r}; it must be whole seconds, 1s to 24h")
    return lease


def _rate(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(f"{name} is {text!r}; it must be a number of deliveries per second, or none") from None


def _or_none(parse: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    return lambda text, name: None if text.lower() == "none" else parse(text, name)


def _setting(metavar: str, parse: Callable[[str, str], Any] | None = None) -> Any:
    """Return the option of a setting. A parsed value is in a tuple, so that `None` means "not given"."""
    parser = None if parse is None else typed(lambda given, option: (parse(given, option),))
    return typer.Option(metavar=metavar, parser=parser)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that a topic is created with, and that can be changed.

    Attributes:
        lease: Lease (visibility timeout), 1s to 24h in whole seconds.
        max_retries: Maximum number of retries, 0 to 999.
        retry: Retry policy: immediate, exponential[:BASE,CAP] (as in 1s,10m) or ladder[:STEP,STEP,...].
        max_content_bytes: Maximum size of a content in bytes, 1 to 65536.
        max_body_bytes: Maximum size of a body in bytes, 0 to 16777216.
        max_backlog: Maximum number of messages in the backlog, or none for no limit.
        max_dead: Maximum number of dead messages to keep.
        max_dead_age: Maximum age of dead messages, such as 7d; older ones are deleted.
        when_full: What a send does at max_backlog: refuse, block or drop.
        full_timeout: Time that a send waits for room if when_full is block.
        ttl: Age at which messages become dead letters, or none.
        max_rate: Maximum number of deliveries per second in the whole cluster, or none.
        max_burst: Maximum number of deliveries at once after a time without any, or none for those of one second.
        keep_attempts: Number of failed attempts kept with a message, with worker and the last traceback, or none.
        max_length: stream: maximum number of entries to keep, or none for no limit.
        max_age: stream: maximum age of entries to keep, or none for no limit.
    """

    lease: Annotated[Given, _setting("DURATION", _lease)] = None
    max_retries: Annotated[int | None, _setting("N")] = None
    retry: Annotated[Given, _setting("POLICY", parse_retry)] = None
    max_content_bytes: Annotated[int | None, _setting("N")] = None
    max_body_bytes: Annotated[int | None, _setting("N")] = None
    max_backlog: Annotated[Given, _setting("N", parse_count_or_none)] = None
    max_dead: Annotated[int | None, _setting("N")] = None
    max_dead_age: Annotated[Given, _setting("DURATION", parse_duration)] = None
    when_full: Annotated[Given, _setting("POLICY", parse_when_full)] = None
    full_timeout: Annotated[Given, _setting("DURATION", parse_duration)] = None
    ttl: Annotated[Given, _setting("DURATION", _or_none(parse_duration))] = None
    max_rate: Annotated[Given, _setting("N", _or_none(_rate))] = None
    max_burst: Annotated[Given, _setting("N", parse_count_or_none)] = None
    keep_attempts: Annotated[Given, _setting("N", parse_count_or_none)] = None
    max_length: Annotated[Given, _setting("N", parse_count_or_none)] = None
    max_age: Annotated[Given, _setting("DURATION", _or_none(parse_duration))] = None

    def given(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings that are given, and separately those of the retention."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        settings: dict[str, Any] = {
            name: value[0] if isinstance(value, tuple) else value for name, value in given.items()
        }
        return settings, {name: settings.pop(name) for name in ("max_length", "max_age") if name in settings}


def list_topics(session: Session) -> None:
    """List all registered topics."""
    with session.client() as client:
        found = client.definitions()
    merging = any(topic.merge for topic in found.topics)
    columns: Columns[Topic] = {
        "topic": lambda topic: topic.name,
        "type": lambda topic: dashed(topic.type),
        **({"merge": lambda topic: merge_name(topic.merge)} if merging else {}),
        ">slots": lambda topic: str(topic.slots),
        ">max retries": lambda topic: str(topic.max_retries),
        ">lease": lambda topic: span(topic.lease_s * 1000),
        "retry": lambda topic: topic.retry.to_json()["policy"],
    }
    topics = [json.loads(topic.to_json()) for topic in found.topics]
    show_topics(session, topics, table_of(columns, found.topics), found.unreadable)


def show_topics(
    session: Session, topics: list[Any], view: RenderableType, unreadable: Sequence[UnreadableTopic]
) -> None:
    """Print topics as JSON or as `view`, with the definitions that cannot be read and the reasons."""
    if not session.json:
        for each in unreadable[:MOST_REPORTED]:
            session.warn(f"not shown: {each.reason}")
        if len(unreadable) > MOST_REPORTED:
            session.warn(f"not shown: {len(unreadable) - MOST_REPORTED:,} more definitions that cannot be read")
    document = {"topics": topics, **({"unreadable": [asdict(each) for each in unreadable]} if unreadable else {})}
    session.overview(
        document, view if topics else None, "no topics are registered; the first send or consumer registers one"
    )


def show_topic(session: Session, topic: TopicName) -> None:
    """Show a topic's definition."""
    with session.client() as client:
        _show(session, client.topic(topic))


def create_topic(
    session: Session,
    topic: TopicName,
    kind: Annotated[str, typer.Option("--type", metavar="TYPE")],
    merging: MergeKind,
    bounds: MergeBounds,
    slots: Annotated[int, typer.Option()] = 1,
    ties: Annotated[Ties | None, typer.Option(metavar="ORDER", parser=typed(parse_ties))] = None,
    max_priority: Annotated[int | None, typer.Option(metavar="N")] = None,
    *,
    chosen: Settings,
) -> None:
    """Register a topic. Exit code 1: it is already registered with another definition.

    Options:
        kind: range-merge, priority, fixed-time or stream.
        slots: Number of slots (partitions), a power of two. With owners, it limits the number of workers.
        ties: priority: order of equal priorities: oldest first (default), or any, for priorities up to 2^53 - 1.
        max_priority: priority, ties oldest: largest priority. Default: 1048575.
    """
    settings, kept = chosen.given()
    topic_type = parse_type(kind, "--type")
    wanted = Topic(
        topic,
        topic_type,
        slots=slots,
        ties=ties,
        max_priority=max_priority,
        merge=new_merge(topic_type, merging, bounds),
        retention=replace(Retention(max_length=None), **kept) if kept else None,
        **settings,
    )
    with session.client() as client:
        before = True
        try:
            known = client.topic(topic)
        except UnknownTopicError:
            known, before = client.producer(wanted).topic, False  # another process may have been faster
    if known != wanted:
        raise TopicMismatchError(
            f"topic {topic} is registered with another definition; show it with `rmq topics show {topic}`, or change "
            "it with `rmq topics change`",
            topic=topic,
        )
    if before:
        session.note(f"topic {topic} is already registered with this definition")
    _show(session, known)


def change_topic(session: Session, topic: TopicName, bounds: MergeBounds, chosen: Settings) -> None:
    """Change settings of a topic. Running processes use them after a restart; --max-rate applies at once.

    Type and slots cannot be changed: delete the topic with --forget, and create it again.
    """
    changes, kept = chosen.given()
    if not changes and not kept and not bounds.given():
        raise InvalidValueError("nothing to change: give at least one setting, such as --lease 2m")
    if "max_rate" in changes and changes["max_rate"] is None:
        changes.setdefault("max_burst", None)
    before = 0

    def change(registered: Topic) -> Topic:
        nonlocal before
        before = registered.max_retries
        retention = registered.retention or Retention(max_length=None)
        more: dict[str, Any] = {"retention": replace(retention, **kept)} if kept else {}
        more |= {"merge": changed_merge(registered, bounds)} if bounds.given() else {}
        return registered.changed(**changes, **more)

    with session.client() as client:
        after = client.update_topic(topic, change)
    if after.ties is Ties.ANY and after.max_retries > before:
        session.warn(f"messages with a priority up to {after.max_retries} that are in the backlog now count as retries")
    if kept or bounds.given() or changes.keys() - {"max_rate", "max_burst"}:
        session.note("running processes keep the old settings until they restart")
    if "lease" in changes:
        warn_of_two_leases(session, after)
    _show(session, after)


def delete_topic(
    session: Session,
    topic: TopicName,
    force: Annotated[bool, typer.Option("--force")] = False,
    forget: Annotated[bool, typer.Option("--forget")] = False,
) -> None:
    """Delete a topic that holds no messages and that no worker, Spark query or schedule uses.

    Programs that still run are refused when they send to it. The next program that starts with the same topic registers
    it again. If the command was interrupted, repeat it.

    Options:
        force: Delete the topic with all its messages, even if it is in use. Prints their number.
        forget: Also free the name for another type or number of slots, once all programs that use it have ended.
    """
    with session.client() as client:
        deleted = client.delete_topic(topic, force=force, forget=forget)
    for name in deleted.schedules:
        session.warn(f"schedule {name} sends to topic {topic}; remove it with `rmq schedules remove {name}`")
    session.result(asdict(deleted), f"topic {topic} deleted, with {counted(deleted.messages, 'message')}")


def warn_of_two_leases(session: Session, topic: Topic) -> None:
    """Warn that the old and the new lease of a stream topic must not be in use at the same time."""
    if topic.type is TopicType.STREAM:
        session.warn(
            f"topic {topic.name} is a stream topic: stop all consumers of a group before the first one with the new "
            "lease starts, or entries may be delivered twice"
        )


def _show(session: Session, topic: Topic) -> None:
    if session.json:
        session.document(json.loads(topic.to_json()))
        return
    rows = {
        "type": dashed(topic.type),
        **merge_words(topic),
        **({} if topic.max_priority is None else {"ties": f"oldest first, priorities up to {topic.max_priority:,}"}),
        **({"ties": "any"} if topic.ties is Ties.ANY else {}),
        "slots": f"{topic.slots:,}",
        "max retries": str(topic.max_retries),
        "lease": span(topic.lease_s * 1000),
        "retry": _described(topic.retry),
        **({"attempts": f"the last {topic.keep_attempts} failed ones are kept"} if topic.keep_attempts else {}),
        "max content": f"{topic.max_content_bytes:,} bytes",
        "max body": f"{topic.max_body_bytes:,} bytes",
        "max backlog": "no limit" if topic.max_backlog is None else f"{topic.max_backlog:,}",
        "max dead": f"{topic.max_dead:,}",
        "max dead age": span(topic.max_dead_age_ms),
    }
    if topic.max_backlog is not None:
        waits = f", for {span(topic.full_timeout_s * 1000)}" if topic.when_full is WhenFull.BLOCK else ""
        rows["when full"] = f"{dashed(topic.when_full)}{waits}"
    if topic.max_rate is not None:
        rows["max rate"] = f"{topic.max_rate:,g} a second, {topic.rate_burst:,} at once"
    if topic.ttl_ms is not None:
        rows["time to live"] = span(topic.ttl_ms)
    if topic.type is TopicType.STREAM:
        rows["retention"] = _retention(topic.retention)
    session.line((topic.name, "bold"))
    for name, value in rows.items():
        session.line((f"  {name:<13}", "dim"), value)


def _retention(retention: Retention | None) -> str:
    if retention is None or not retention.bounded:
        return "all entries are kept"
    bounds = [] if retention.max_length is None else [f"{retention.max_length:,} entries"]
    bounds += [] if retention.max_age_ms is None else [span(retention.max_age_ms)]
    bounds += ["the entries since the last clean-up"] if retention.shrink else []
    spared = ", acked or not" if retention.unacked else "; entries that a group has not acked are kept"
    return f"{' or '.join(bounds)}{spared}; cleaned up every {span(retention.every_ms)}"


def _described(retry: RetryPolicy) -> str:
    policy = retry.to_json()
    match retry:
        case ExponentialRetry():
            return f"{policy['policy']}, from {span(retry.base_ms)} up to {span(retry.cap_ms)}"
        case LadderRetry():
            return f"{policy['policy']}, {', '.join(span(step_s * 1000) for step_s in retry.steps_s)}"
        case _:
            return policy["policy"]


DIFFERS = 3
"""Exit code of `diff` if a topic differs."""

Module = Annotated[str, typer.Argument(metavar="MODULE", help="Module or package to import, such as shop.jobs.")]


@dataclass(frozen=True, slots=True)
class Compared:
    """A topic of a program, its registered definition, if any, and their differences."""

    topic: Topic
    registered: Topic | None
    differences: tuple[Any, ...] = ()

    @property
    def differs(self) -> bool:
        """True if the topic is not registered, or differs from its registered definition."""
        return self.registered is None or bool(self.differences)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON document."""
        return {
            "topic": self.topic.name,
            "settings": [each.setting for each in self.differences],
            "fixed": [each.setting for each in self.differences if each.fixed],
            "registered": None if self.registered is None else self.registered.to_fields(),
            "program": self.topic.to_fields(),
        }


def diff(session: Session, module: Module) -> int:
    """Show how the topics of MODULE differ from the registered ones. Exit code 3: there are differences."""
    found = _topics_in(session, module)
    with session.client() as client:
        compared = [_compared(client, topic) for topic in found]
    differing = [each for each in compared if each.differs]
    if session.json:
        session.document({"topics": len(found), "differing": [each.to_json() for each in differing]})
    for each in [] if session.json else differing:
        session.line((each.topic.name, "bold"), "" if each.registered else "  is not registered")
        for one in each.differences:
            session.line(f"  registered: {one.worded()}{' (cannot be changed)' if one.fixed else ''}")
    session.note(f"{len(differing)} of {counted(len(found), 'topic')} of {module} differ")
    return DIFFERS if differing else 0


def apply(session: Session, module: Module) -> None:
    """Register the topics of MODULE, and change the settings of registered topics to those of MODULE.

    Nothing is changed if the type, number of slots, merge or order of equal priorities of any topic differs.
    """
    found = _topics_in(session, module)
    with session.client() as client:
        compared = [_compared(client, topic) for topic in found]
        for each in compared:
            if fixed := [one.worded() for one in each.differences if one.fixed]:
                raise TopicMismatchError(
                    f"topic {each.topic.name} is registered with {'; '.join(fixed)}, which cannot be changed; "
                    "nothing was applied",
                    topic=each.topic.name,
                )
        applied = [each for each in compared if each.differs]
        for each in applied:
            if each.registered is None:
                client.producer(each.topic)
            client.update_topic(each.topic.name, lambda _, wanted=each.topic: wanted)
    for each in applied:
        if any(one.setting == "lease" for one in each.differences):
            warn_of_two_leases(session, each.topic)
    if session.json:
        session.document({"topics": len(found), "applied": [each.to_json() for each in applied]})
        return
    for each in applied:
        words = [one.worded("now") for one in each.differences]
        session.line((each.topic.name, "bold"), f"  {'; '.join(words) or 'registered'}")
    session.note(f"{len(applied)} of {counted(len(found), 'topic')} of {module} changed")
    if any(each.registered for each in applied):
        session.note("running processes keep the old settings until they restart")


def _compared(client: RmqClient, topic: Topic) -> Compared:
    try:
        registered = client.topic(topic.name)
    except UnknownTopicError:
        return Compared(topic, None)
    return Compared(topic, registered, tuple(differences(registered, topic)))


def _topics_in(session: Session, name: str) -> list[Topic]:
    session.pass_url_on()
    if "" not in sys.path:
        sys.path.insert(0, "")
    return topics_in(name)
