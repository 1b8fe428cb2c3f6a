"""`rmq topics`: list, show and change definitions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from rmq.cli.session import Session, new_table
from rmq.cli.shown import span
from rmq.cli.values import dashed, parse_count_or_none, parse_duration_ms, parse_retry, parse_when_full
from rmq.errors import InvalidValueError
from rmq.retention import Retention
from rmq.retry import ExponentialRetry, LadderRetry, RetryPolicy
from rmq.topics import Topic, TopicType, WhenFull

TopicName = Annotated[str, typer.Argument(help="Name of the topic.")]


def list_topics(session: Session) -> None:
    """List all registered topics."""
    with session.client() as client:
        topics = client.topics()
    if session.json:
        session.document({"topics": [_as_json(topic) for topic in topics]})
        return
    if not topics:
        session.note("no topics: the first send or consumer registers one")
        return
    table = new_table("topic", "type", ">slots", ">max retries", ">lease", "retry")
    for topic in topics:
        retry = topic.retry.to_json()["policy"]
        lease = span(topic.lease_s * 1000)
        table.add_row(topic.name, dashed(topic.type), str(topic.slots), str(topic.max_retries), lease, retry)
    session.out.print(table)


def show_topic(session: Session, topic: TopicName) -> None:
    """Show a topic's definition."""
    with session.client() as client:
        _show(session, client.topic(topic))


def change_topic(
    session: Session,
    topic: TopicName,
    lease: Annotated[str | None, typer.Option(metavar="DURATION", help="Whole seconds, 1s to 24h.")] = None,
    max_retries: Annotated[int | None, typer.Option(metavar="N", help="0 to 999.")] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="immediate, exponential\\[:BASE,CAP] (as in 1s,10m) or ladder\\[:STEP,STEP,...]."
        ),
    ] = None,
    max_content_bytes: Annotated[int | None, typer.Option(metavar="N", help="1 to 65536.")] = None,
    max_body_bytes: Annotated[int | None, typer.Option(metavar="N", help="0 to 16777216.")] = None,
    max_backlog: Annotated[str | None, typer.Option(metavar="N", help="Most messages in the backlog, or none.")] = None,
    max_dead: Annotated[int | None, typer.Option(metavar="N", help="Most dead messages kept.")] = None,
    max_dead_age: Annotated[str | None, typer.Option(metavar="DURATION", help="How long the dead are kept.")] = None,
    when_full: Annotated[
        str | None, typer.Option(metavar="POLICY", help="At max_backlog: refuse, block or drop.")
    ] = None,
    full_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a send that blocks waits for room.")
    ] = None,
    ttl: Annotated[str | None, typer.Option(metavar="DURATION", help="Older work goes to the dead; or none.")] = None,
    max_rate: Annotated[
        str | None, typer.Option(metavar="N", help="Most deliveries a second in the whole cluster, or none.")
    ] = None,
    max_burst: Annotated[
        str | None, typer.Option(metavar="N", help="Most at once after a pause, or none for a second's worth.")
    ] = None,
    max_length: Annotated[
        str | None, typer.Option(metavar="N", help="stream: most entries kept, or none for no bound.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(metavar="DURATION", help="stream: how long entries are kept, or none.")
    ] = None,
) -> None:
    """Change settings of a topic. Processes that run keep theirs until they restart, but for --max-rate."""
    given: dict[str, Any] = {
        "lease": None if lease is None else _parse_lease_ms(lease),
        "max_retries": max_retries,
        "retry": None if retry is None else parse_retry(retry),
        "max_content_bytes": max_content_bytes,
        "max_body_bytes": max_body_bytes,
        "max_dead": max_dead,
        "max_dead_age": None if max_dead_age is None else parse_duration_ms(max_dead_age, "--max-dead-age"),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    changes |= _limits(max_backlog, when_full, full_timeout, ttl, max_rate, max_burst)
    kept: dict[str, Any] = {}
    if max_length is not None:
        kept["max_length"] = parse_count_or_none(max_length, "--max-length")
    if max_age is not None:
        kept["max_age"] = None if max_age.lower() == "none" else parse_duration_ms(max_age, "--max-age")
    if not changes and not kept:
        raise InvalidValueError("nothing to change: give at least one setting, such as --lease 2m")
    with session.client() as client:
        before = client.topic(topic)
        if kept:
            changes["retention"] = replace(before.retention or Retention(max_length=None), **kept)
        after = client.change_topic(before.changed(**changes))
    if after.type is TopicType.PRIORITY and after.max_retries > before.max_retries:
        session.warn(f"messages with a priority up to {after.max_retries} that are in the backlog now count as retries")
    if changes.keys() - {"max_rate", "max_burst"}:
        session.note("processes that run keep the old settings until they restart")
    _show(session, after)


def _limits(
    max_backlog: str | None,
    when_full: str | None,
    full_timeout: str | None,
    ttl: str | None,
    max_rate: str | None,
    max_burst: str | None,
) -> dict[str, Any]:
    """Return the changes of what bounds backlog, age and rate."""
    changes: dict[str, Any] = {}
    if when_full is not None:
        changes["when_full"] = parse_when_full(when_full)
    if full_timeout is not None:
        changes["full_timeout"] = parse_duration_ms(full_timeout, "--full-timeout")
    if ttl is not None:
        changes["ttl"] = None if ttl == "none" else parse_duration_ms(ttl, "--ttl")
    if max_backlog is not None:
        changes["max_backlog"] = parse_count_or_none(max_backlog, "--max-backlog")
    if max_rate is not None:
        changes["max_rate"] = _parse_rate(max_rate)
        if changes["max_rate"] is None:
            changes["max_burst"] = None
    if max_burst is not None:
        changes["max_burst"] = parse_count_or_none(max_burst, "--max-burst")
    return changes


def _parse_rate(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(f"--max-rate is {text!r}; it must be a number, or none for no limit") from None


def _parse_lease_ms(text: str) -> int:
    lease_ms = parse_duration_ms(text, "--lease")
    if lease_ms % 1000 or not 1_000 <= lease_ms <= 86_400_000:
        raise InvalidValueError(f"--lease is {text!r}; it must be whole seconds, 1s to 24h")
    return lease_ms


def _show(session: Session, topic: Topic) -> None:
    if session.json:
        session.document(_as_json(topic))
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


def _as_json(topic: Topic) -> dict[str, Any]:
    return json.loads(topic.to_json())
