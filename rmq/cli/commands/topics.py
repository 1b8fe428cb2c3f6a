"""`rmq topics`: list, show and change definitions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from rmq._model.definitions import UnreadableTopic
from rmq._model.display import span
from rmq._model.retention import Retention
from rmq._model.retry import ExponentialRetry, LadderRetry, RetryPolicy
from rmq._model.times import parse_duration_ms
from rmq._model.topics import Topic, TopicType, WhenFull
from rmq.cli import documents
from rmq.cli.console import Session, new_table
from rmq.cli.options import TopicName
from rmq.cli.parsing import dashed, parse_count_or_none, parse_retry, parse_when_full
from rmq.errors import InvalidValueError

MOST_REPORTED = 20
"""Most definitions that cannot be read and are reported one by one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that `change` takes as an option.

    Attributes:
        name: Its name in the definition; the option's name has dashes.
        metavar: What to type.
        help: The option's help.
        parse: Gets the text and the option's name.
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str, str], Any]

    @property
    def option(self) -> str:
        """The option's name."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as typer takes it."""
        kind: Any = int | None if self.parse is _count else str | None
        annotation = Annotated[kind, typer.Option(self.option, metavar=self.metavar, help=self.help)]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _count(number: Any, name: str) -> int:
    del name
    return number


def _lease_ms(text: str, name: str) -> int:
    lease_ms = parse_duration_ms(text, name)
    if lease_ms % 1000 or not 1_000 <= lease_ms <= 86_400_000:
        raise InvalidValueError(f"{name} is {text!r}; it must be whole seconds, 1s to 24h")
    return lease_ms


def _duration_or_none(text: str, name: str) -> int | None:
    return None if text.lower() == "none" else parse_duration_ms(text, name)


def _rate_or_none(text: str, name: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(f"{name} is {text!r}; it must be a number, or none for no limit") from None


_RETRY = "immediate, exponential\\[:BASE,CAP] (as in 1s,10m) or ladder\\[:STEP,STEP,...]."
SETTINGS = (
    Setting("lease", "DURATION", "Whole seconds, 1s to 24h.", _lease_ms),
    Setting("max_retries", "N", "0 to 999.", _count),
    Setting("retry", "POLICY", _RETRY, parse_retry),
    Setting("max_content_bytes", "N", "1 to 65536.", _count),
    Setting("max_body_bytes", "N", "0 to 16777216.", _count),
    Setting("max_backlog", "N", "Most messages in the backlog, or none.", parse_count_or_none),
    Setting("max_dead", "N", "Most dead messages kept.", _count),
    Setting("max_dead_age", "DURATION", "How long dead messages are kept.", parse_duration_ms),
    Setting("when_full", "POLICY", "At max_backlog: refuse, block or drop.", parse_when_full),
    Setting("full_timeout", "DURATION", "How long a send that blocks waits for room.", parse_duration_ms),
    Setting("ttl", "DURATION", "Older messages become dead letters; or none.", _duration_or_none),
    Setting("max_rate", "N", "Most deliveries a second in the whole cluster, or none.", _rate_or_none),
    Setting("max_burst", "N", "Most at once after a pause, or none for a second's worth.", parse_count_or_none),
)
RETENTION = (
    Setting("max_length", "N", "stream: most entries kept, or none for no bound.", parse_count_or_none),
    Setting("max_age", "DURATION", "stream: how long entries are kept, or none.", _duration_or_none),
)


def list_topics(session: Session) -> None:
    """List all registered topics."""
    with session.client() as client:
        found = client.definitions()
    topics = found.topics
    if session.json:
        unreadable = documents.unreadable_topics(found.unreadable)
        session.document({"topics": [json.loads(topic.to_json()) for topic in topics], **unreadable})
        return
    report_unreadable(session, found.unreadable)
    if not topics:
        session.note("no topics: the first send or consumer registers one")
        return
    table = new_table("topic", "type", ">slots", ">max retries", ">lease", "retry")
    for topic in topics:
        retry = topic.retry.to_json()["policy"]
        lease = span(topic.lease_s * 1000)
        table.add_row(topic.name, dashed(topic.type), str(topic.slots), str(topic.max_retries), lease, retry)
    session.out.print(table)


def report_unreadable(session: Session, unreadable: Sequence[UnreadableTopic]) -> None:
    """Report beside the result which definitions cannot be read, and why."""
    for each in unreadable[:MOST_REPORTED]:
        session.warn(f"not shown: {each.reason}")
    if len(unreadable) > MOST_REPORTED:
        session.warn(f"not shown either: {len(unreadable) - MOST_REPORTED:,} more definitions that cannot be read")


def show_topic(session: Session, topic: TopicName) -> None:
    """Show a topic's definition."""
    with session.client() as client:
        _show(session, client.topic(topic))


def change_topic(session: Session, topic: TopicName, **texts: Any) -> None:
    """Change settings of a topic. Processes that run keep theirs until they restart, but for --max-rate."""
    changes, kept = _parsed(SETTINGS, texts), _parsed(RETENTION, texts)
    if not changes and not kept:
        raise InvalidValueError("nothing to change: give at least one setting, such as --lease 2m")
    if "max_rate" in changes and changes["max_rate"] is None:
        changes.setdefault("max_burst", None)
    before = 0

    def change(registered: Topic) -> Topic:
        nonlocal before
        before = registered.max_retries
        retention = registered.retention or Retention(max_length=None)
        given = {**changes, "retention": replace(retention, **kept)} if kept else changes
        return registered.changed(**given)

    with session.client() as client:
        after = client.update_topic(topic, change)
    if after.type is TopicType.PRIORITY and after.max_retries > before:
        session.warn(f"messages with a priority up to {after.max_retries} that are in the backlog now count as retries")
    if kept or changes.keys() - {"max_rate", "max_burst"}:
        session.note("processes that run keep the old settings until they restart")
    _show(session, after)


_shared = list(inspect.signature(change_topic, eval_str=True).parameters.values())[:-1]
change_topic.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
    [*_shared, *(setting.parameter for setting in (*SETTINGS, *RETENTION))]
)


def _parsed(settings: Sequence[Setting], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, by name."""
    given = ((each, texts[each.name]) for each in settings)
    return {each.name: each.parse(text, each.option) for each, text in given if text is not None}


def _show(session: Session, topic: Topic) -> None:
    if session.json:
        session.document(json.loads(topic.to_json()))
        return
    rows = {
        "type": dashed(topic.type),
        "slots": f"{topic.slots:,}",
        "max retries": str(topic.max_retries),
        "lease": span(topic.lease_s * 1000),
        "retry": _described(topic.retry),
        "max content": f"{topic.max_content_bytes:,} bytes",
        "max body": f"{topic.max_body_bytes:,} bytes",
        "max backlog": "no limit" if topic.max_backlog is None else f"{topic.max_backlog:,}",
        "max dead": f"{topic.max_dead:,}",
        "max dead age": span(topic.max_dead_age_ms),
    }
    if topic.max_backlog is not None:
        waits = f", for {span(topic.full_timeout_s * 1000)}" if topic.when_full is WhenFull.BLOCK else ""
        rows["when full"] = f"{topic.when_full.value.lower()}{waits}"
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
        return "everything is kept"
    bounds = [] if retention.max_length is None else [f"{retention.max_length:,} entries"]
    bounds += [] if retention.max_age_ms is None else [span(retention.max_age_ms)]
    bounds += ["what arrived since the last clean-up"] if retention.shrink else []
    spared = ", acked or not" if retention.unacked else "; what a group has not acked stays"
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
