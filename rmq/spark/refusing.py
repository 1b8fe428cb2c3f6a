"""Refuses single rows of a streaming query's batch: the ack of the batch makes them dead messages, or retries them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rmq import Topic
from rmq.errors import InvalidValueError
from rmq.spark.arrow import pa
from rmq.spark.calls import CHUNK, How, Refused, read_claim, refuse_contents
from rmq.spark.options import Options, parse_options
from rmq.spi import Duration, duration_ms
from rmq.spi.scripts import Call, Connections, Registry, describe

_NEEDED = ("topic", "slot", "content", "claim")
_TOGETHER = 64
"""Maximum number of calls in a round trip."""

_AT_ONCE = 10_000
"""Number of rows that are grouped into calls."""


def refuse(
    frame: DataFrame,
    error: str | Exception | Column = "refused",
    *,
    delay: Duration | None = None,
    url: str | None = None,
) -> Refused:
    """Refuse all rows of a frame in `foreachBatch`, so that the ack of their batch excludes them.

    Args:
        frame: Rows of `readStream`, with `topic`, `slot`, `content` and `claim`; the option `columns` adds `claim`.
        error: The reason; a column gives the reason of each row. By default "refused".
        delay: Delay until the retry of the messages, more than 0: a `timedelta` or a text such as "30s"; a message
            without retries left dies. By default all messages die.
        url: URL of Redis as the executors reach it; by default `RMQ_URL`.

    Returns:
        `noted`: number of rows refused; `missing`: number of rows that are not in their batch.

    Raises:
        InvalidValueError: A column is missing, or `delay` is not a duration of more than 0.
        PySparkException: A task failed: a `claim` is null, a topic is not registered, the batch is already acked, a
            newer driver reads the topic, another worker has owned a slot since the read, or Redis does not answer.

    Guarantee: safe to repeat; the last refusal of a row counts. No message moves before Spark has committed the batch,
    so the batch can be read again. If the batch runs again after a restart, its rows must be refused again.
    """
    for name in _NEEDED:
        if name not in map(str.lower, frame.columns):
            raise InvalidValueError(
                f"column {name} is missing; refuse needs {', '.join(_NEEDED)}. Column claim is read with "
                '.option("columns", "*, claim")'
            )
    delay_ms, options = _checked(delay), _options(url)
    kind, text = ("", "") if isinstance(error, Column) else describe(error)
    why = error.cast("string") if isinstance(error, Column) else F.lit(text)
    rows = frame.select("topic", F.col("slot").cast("int"), F.col("content").cast("binary"), "claim", why.alias("why"))
    told = cast("Any", rows).mapInArrow(_refusing(options, delay_ms, kind), "noted long, missing long")
    [found] = told.agg(F.sum("noted"), F.sum("missing")).collect()
    return Refused(found[0] or 0, found[1] or 0)


def refuse_rows(
    rows: Iterable[Mapping[str, Any]],
    error: str | Exception = "refused",
    *,
    delay: Duration | None = None,
    url: str | None = None,
) -> Refused:
    """Refuse rows in a task or on the driver, as `refuse` does for a frame.

    Args:
        rows: Rows of `readStream`, such as `Row.asDict()`, with `topic`, `slot`, `content` (bytes or text) and `claim`.
        error: The reason.
        delay: As for `refuse`.
        url: URL of Redis; by default `RMQ_URL`.

    Returns:
        The numbers of rows refused, and of rows that are not in their batch.

    Raises:
        InvalidValueError: A value is missing, or `delay` is not a duration of more than 0.
        BatchAckedError: The batch of the rows is already acked.
        DriverReplacedError: A newer driver of the query reads the topic.
        FencedError: Another worker has owned the slot since the read, so the batch fails at its next read of that slot.
            With `failOnLeaseLost=false` such rows count as missing.
        UnknownTopicError: The topic of a row is not registered.
        RedisUnavailableError: Redis did not answer before the deadline; some of the rows may already be refused.

    Guarantee: as for `refuse`.
    """
    kind, text = describe(error)
    delay_ms, options = _checked(delay), _options(url)
    values = ((*(_value(row, name) for name in _NEEDED), text) for row in rows)
    with closing(options.connections()) as connections:
        return _Refusal(connections, delay_ms, kind).carry_out(values)


def _value(row: Mapping[str, Any], name: str) -> Any:
    value = row.get(name)
    if value is None:
        raise InvalidValueError(f"a row to refuse has no {name}; refuse needs {', '.join(_NEEDED)}")
    return value.encode() if name == "content" and isinstance(value, str) else value


def _checked(delay: Duration | None) -> int | None:
    delay_ms = None if delay is None else duration_ms(delay, "delay")
    if delay_ms == 0:
        raise InvalidValueError(
            f"delay is {delay!r}; it must be more than 0, or omitted to make the rows dead messages"
        )
    return delay_ms


def _options(url: str | None) -> Options:
    return parse_options({} if url is None else {"url": url})


class _Refusal:
    """Stores refusals in Redis, some thousands of rows at a time."""

    def __init__(self, connections: Connections, delay_ms: int | None, error_type: str) -> None:
        self._connections, self._delay_ms, self._type = connections, delay_ms, error_type
        self._topics: dict[str, Topic] = {}

    def carry_out(self, rows: Iterable[tuple[Any, ...]]) -> Refused:
        """Refuse rows, given as tuples of topic, slot, content, claim and reason."""
        noted = missing = 0
        rest = iter(rows)
        while piece := list(islice(rest, _AT_ONCE)):
            calls = list(self._calls(piece))
            for first in range(0, len(calls), _TOGETHER):
                for found in self._connections.run_many(calls[first : first + _TOGETHER]):
                    if isinstance(found, Exception):
                        raise found
                    noted, missing = noted + found.noted, missing + found.missing
        return Refused(noted, missing)

    def _calls(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[Call[Refused]]:
        alike: dict[tuple[str, int, str, str], list[bytes]] = {}
        for topic, slot, content, claim, why in rows:
            if claim is None:
                raise InvalidValueError(
                    "column claim of a row to refuse is null; refuse needs the rows of readStream, unchanged"
                )
            alike.setdefault((topic, slot, claim, why), []).append(content)
        for (name, slot, claim, why), contents in alike.items():
            if name not in self._topics:
                self._topics[name] = Registry(self._connections).get(name)
            how = How(self._delay_ms, self._type, describe(why or "")[1])
            for first in range(0, len(contents), CHUNK):
                part = contents[first : first + CHUNK]
                yield refuse_contents(self._topics[name], slot, read_claim(claim), how, part)


def _refusing(options: Options, delay_ms: int | None, kind: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def refuse_batches(batches: Iterable[Any]) -> Iterator[Any]:
        with closing(options.connections()) as connections:
            refusal = _Refusal(connections, delay_ms, kind)
            rows = (row for batch in batches for row in zip(*(each.to_pylist() for each in batch.columns), strict=True))
            found = refusal.carry_out(rows)
        yield pa.RecordBatch.from_pydict({"noted": [found.noted], "missing": [found.missing]})

    return refuse_batches
