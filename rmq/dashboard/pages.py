"""The pages of the dashboard. Each method reads the values of a page and renders its template."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rmq import ListenerInfo, RunningHandler, Topic, TopicStats, TopicType, Whereabouts, WorkerInfo
from rmq.dashboard.background import Jobs
from rmq.dashboard.charts import GROUP_METRICS, METRICS, by_metric, heat
from rmq.dashboard.queries import PERIODS, RANGES, SORTS, Reader, basis_for, digest, list_messages
from rmq.dashboard.queries import PLACES as SECTIONS
from rmq.dashboard.rendering import Pages, link, message_link
from rmq.errors import InvalidValueError, RedisUnavailableError, RmqError
from rmq.spi import AnyPlace, checked_slots, monotonic_s, shown, span
from rmq.views.columns import CONSUMERS, GROUP_SIZES, LISTENERS, SIZES, TOPICS, Column, plain, share
from rmq.views.findings import TopicReading
from rmq.views.reading import search_pages

PAGE = 50
MOST_SCHEDULES = 200
"""Maximum number of schedules on a page of theirs."""

LATE_MS = 1_000
"""A schedule that has been due for longer counts as late, ms."""

BUDGET = 5_000
"""Maximum number of messages that one search examines."""

FILLED: Column[Any] = Column(lambda row: "", str)
"""A column whose cells the template fills in."""

_SHARE: Column[TopicStats] = Column(lambda each: each.merged_ratio if each.total("accepted") else None, share)
SLOT = {"slot": FILLED, "owner": FILLED, **SIZES, ">merged": _SHARE}
GROUP = {"group": FILLED, **GROUP_SIZES, ">oldest unread": FILLED, "state": FILLED}
GROUP_SLOT = {"slot": FILLED, "owner": FILLED, **GROUP_SIZES, "oldest unacked": FILLED, "last read": FILLED}
LISTENER = {name: column for name, column in LISTENERS.items() if name != ">longest"}

SLOT_ROWS = 16
"""Number of slots that a table shows at a time."""


MOST_TOPICS, MOST_RUNNING = 50, 50
"""Maximum number of topics of which the errors of dead messages are counted, and of running handlers on their page."""

MOST_SLOTS, MOST_SEARCH_S = 4_096, 3.0
"""Maximum number of slots in which a content is searched, a few µs of Redis each, and the time for it in seconds."""


class Result(NamedTuple):
    """A search result: kind, name, address of its page, and more about it; for a message its states."""

    kind: str
    name: str
    address: str
    more: str = ""
    found: Whereabouts | None = None


Results = tuple[list[Result], int, int]
"""The results of a search, the number of topics in which all slots were searched, and of those in which not."""


class DeadRow(NamedTuple):
    """Dead messages of a topic with one type of error, or dead entries of a group, whose `error` is `None`."""

    topic: str
    group: str
    error: str | None
    number: int
    exact: bool = True


class Views:
    """Handles the requests for pages."""

    def __init__(self, pages: Pages, jobs: Jobs) -> None:
        self._pages = pages
        self._reader: Reader = pages.reader
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        paths = {
            "/": self.overview,
            "/topic/{name}": self.topic,
            "/topic/{name}/slot/{slot}": self.slot,
            "/topic/{name}/group/{group}": self.group,
            "/topic/{name}/entries": self.entries,
            "/workers": self.workers,
            "/worker/{name}": self.worker,
            "/schedules": self.schedules,
            "/search": self.search,
            "/find": self.find,
            "/message": self.message,
            "/dead": self.dead,
            "/audit": self.audit,
        }
        return [Route(path, page, methods=["GET"]) for path, page in paths.items()]

    def overview(self, request: Request) -> Response:
        """Show all topics, with charts."""
        chosen = _range(request)
        overview = self._reader.overview()
        charts = self._reader.charts(None, chosen)
        part, sort = request.query_params.get("filter", ""), request.query_params.get("sort", "")
        rows = [each for each in overview.topics if part.lower() in each.topic.name.lower()]
        for column in (column for name, column in TOPICS.items() if plain(name) == sort):
            rows.sort(key=column.rank)
        return self._pages.render(
            request, "overview.html", overview=overview, charts=charts, periods=PERIODS, chosen=chosen,
            handlers=self._reader.handler_times(), rows=rows, filter=part, sort=sort, columns=TOPICS,
        )  # fmt: skip

    def find(self, request: Request) -> Response:
        """Show the results of the search field: topics, groups, workers and schedules by name, messages by content."""
        asked = request.query_params.get("q", "").strip()
        rows, whole, partly = _results_of(self._reader, asked) if asked else ([], 0, 0)
        exact = [each for each in rows if each.name == asked]
        if len(rows) == 1 or len(exact) == 1:
            return RedirectResponse((exact or rows)[0].address, 303)
        return self._pages.render(request, "find.html", asked=asked, rows=rows, whole=whole, partly=partly)

    def topic(self, request: Request) -> Response:
        """Show a topic: its figures, its slots and their owners, or its groups."""
        now = self._reader.topic_now(request.path_params["name"])
        chosen, metric = _range(request), request.query_params.get("heat", "backlog")
        values: dict[str, Any] = {
            "now": now, "topic": now.topic, "chosen": chosen,
            "handlers": self._reader.handler_times(now.topic),
            "charts": self._reader.charts(now.topic.name, chosen, timed=now.topic.type.timed),
            "periods": PERIODS, "jobs": self._jobs.of(now.topic.name),
            "queries": now.queries,
            "findings": self._reader.findings(now),
        }  # fmt: skip
        if now.stats is None:
            values |= {"consumers": self._reader.consumers(now.topic)}
            values |= _part_of(request, now.stream.slots if now.stream else ())
            columns = GROUP if self._pages.settings.read_only else GROUP | {"actions": FILLED}
            values |= {"group_columns": columns, "consumer_columns": {**CONSUMERS, "group": FILLED}}
            return self._pages.render(request, "stream.html", **values)
        if metric not in (*METRICS, "owner"):
            metric = "backlog"
        owners = self._reader.owners(now.topic)
        by_slot = "heat" in request.query_params or request.query_params.get("tab") == "slots"
        names = sorted(set(owners.values()))
        return self._pages.render(
            request,
            "topic.html",
            reasons=self._reader.reasons(now.topic) if now.figures.dead else None,
            by_slot=by_slot,
            slots_matter=by_slot or bool(owners) or is_uneven(now),
            heat=heat(now.stats, metric, owners, names),
            metric=metric,
            metrics=METRICS,
            **_part_of(request, by_metric(now.stats, metric)),
            slot_columns=SLOT,
            owners=owners,
            listening=self._reader.listening(now.topic),
            owner_rows=[(name, number, _slots_of(name, owners)) for number, name in enumerate(names)],
            **values,
        )

    def group(self, request: Request) -> Response:
        """Show a group of a stream: its figures, its slots with their owners and lag, and its consumers."""
        now, name = self._reader.topic_now(request.path_params["name"]), request.path_params["group"]
        group = next((each for each in now.groups if each.group == name), None)
        if group is None or now.stream is None:
            text = f"Topic {now.topic.name} has no group {name}."
            return self._pages.render(request, "error.html", 404, heading="Group not found", text=text)
        metric = request.query_params.get("heat", "lag")
        metric = metric if metric in (*GROUP_METRICS, "owner") else "lag"
        owners = self._reader.owners(now.topic, name)
        values: dict[str, Any] = {
            "oldest_ms": now.unread_ms.get(name, 0), "periods": PERIODS, "chosen": _range(request),
            "charts": self._reader.group_charts(now.topic.name, name, _range(request)),
            "findings": [each for each in self._reader.findings(now) if each.group == name],
            "topic": now.topic, "group": group, "metric": metric, "metrics": GROUP_METRICS, "owners": owners,
            "heat": heat(group, metric, owners, sorted(set(owners.values()))),
            "listening": self._reader.listening(now.topic, name), "jobs": self._jobs.of(now.topic.name),
            "handlers": self._reader.handler_times(now.topic, name),
            "consumers": [each for each in self._reader.consumers(now.topic) if each.group == name],
            "consumer_columns": CONSUMERS, "slot_columns": GROUP_SLOT,
            "now_ms": {slot.slot: slot.now_ms for slot in now.stream.slots},
        }  # fmt: skip
        return self._pages.render(request, "group.html", **values, **_part_of(request, by_metric(group, metric)))

    def entries(self, request: Request) -> Response:
        """Show the entries of a stream, the newest first, or those that a group has not read or acked, oldest first."""
        now, query = self._reader.topic_now(request.path_params["name"]), request.query_params
        stream, group, last = self._reader.client.stream(now.topic), query.get("group", ""), query.get("before")
        held = {(each.slot, each.id): each for each in stream.pending(group, limit=PAGE + 1)} if "held" in query else {}
        if "held" in query:
            rows = [entry for slot, entry_id in held if (entry := stream.get(entry_id, slot)) is not None]
        elif group:
            rows = [*stream.unread(group, PAGE + 1)]
        else:
            rows = [*stream.range(last=f"({last}" if last else None, newest_first=True, limit=PAGE + 1)]
        now_ms = now.stream.slots[0].now_ms if now.stream else 0
        return self._pages.render(
            request, "entries.html", topic=now.topic, group=group, rows=rows[:PAGE], more=len(rows) > PAGE, held=held,
            groups=[each.group for each in now.groups], now_ms=now_ms,
        )  # fmt: skip

    def slot(self, request: Request) -> Response:
        """Show a slot: its figures, its owner, and its next messages."""
        topic = _no_stream(self._reader.topic(request.path_params["name"]))
        number = whole_number(request.path_params["slot"], "slot")
        inspection = self._reader.client.inspect(topic)
        stats = inspection.stats([number])
        places = [(place, inspection.peek(place, 10, [number])) for place in ("store", "prepare", "retry")]
        owner = self._reader.owners(topic).get(number)
        values: dict[str, Any] = {"slot": stats.slots[0], "late_ms": stats.lateness_ms, "places": places}
        return self._pages.render(request, "slot.html", topic=topic, owner=owner, **values)

    def workers(self, request: Request) -> Response:
        """Show the processes with running listeners, and the handlers that run longest."""
        workers = self._reader.workers()
        running = _running(workers)[:MOST_RUNNING]
        return self._pages.render(request, "workers.html", workers=workers, running=running, columns=LISTENER)

    def worker(self, request: Request) -> Response:
        """Show a process: its listeners, running handlers and slots."""
        name = request.path_params["name"]
        worker = next((each for each in self._reader.workers() if each.name == name), None)
        if worker is None:
            text = f"There is no worker {name}: it has stopped, or has not reported for a minute. See the page Workers."
            return self._pages.render(request, "error.html", 404, heading="Worker not found", text=text)
        return self._pages.render(request, "worker.html", worker=worker, ranges=_ranges, running=_running([worker]))

    def schedules(self, request: Request) -> Response:
        """List the schedules, first those that fail or are late: when they are due next, when they last ran."""
        query = request.query_params
        found, part = self._reader.schedules(), query.get("filter", "")
        first = whole_number(query.get("first") or "0", "first")
        rows = [each for each in found if part.lower() in each.name.lower()]
        failing, late = ([each for each in rows if each.error], [each for each in rows if each.late_ms > LATE_MS])
        rows.sort(key=lambda each: (not each.error, each.late_ms <= LATE_MS))
        more = first + MOST_SCHEDULES
        return self._pages.render(
            request, "schedules.html", rows=rows[first:more], number=len(rows), filter=part, any=bool(found),
            failing=len(failing), late=len(late), late_ms=LATE_MS, first=first, more=more if len(rows) > more else 0,
        )  # fmt: skip

    def search(self, request: Request) -> Response:
        """List the messages of a topic by state and content, sorted and in pages, with actions on those selected."""
        query = request.query_params
        place, sort = query.get("place", ""), query.get("sort", "")
        values: dict[str, Any] = {
            "topics": [each for each in self._reader.topics() if each.type is not TopicType.STREAM],
            "name": query.get("topic", ""), "pattern": query.get("pattern", ""), "places": SECTIONS, "place": place,
            "page": None, "topic": None, "sorts": SORTS, "sort": sort if sort in SORTS else "next", "first": 0,
        }  # fmt: skip
        if values["name"]:
            topic = values["topic"] = _no_stream(self._reader.topic(values["name"]))
            first = values["first"] = whole_number(query.get("first") or "0", "first")
            places = (_place(place),) if place else SECTIONS
            view, cursor = self._reader.client.inspect(topic), query.get("cursor") or None
            values["page"] = list_messages(view, places, values["pattern"], values["sort"], first, cursor)
            values |= {"sizes": self._reader.topic_now(topic.name).figures, "jobs": self._jobs.of(topic.name)}
        return self._pages.render(request, "search.html", **values)

    def message(self, request: Request) -> Response:
        """Show the state of a message, with the actions on it."""
        query = request.query_params
        content = self._content_of(query)
        if content is None:
            return RedirectResponse("/find", 303)
        topic = _no_stream(self._reader.topic(query.get("topic", "")))
        basis = slot_basis(topic, content, query.get("slot", ""))
        found = self._reader.client.inspect(topic).find(content, basis, everywhere=basis is None)
        return self._pages.render(request, "message.html", found=found, topic=topic)

    def _content_of(self, query: Mapping[str, str]) -> bytes | None:
        if query.get("hex"):
            return from_hex(query["hex"])
        if query.get("sha256"):
            return self._by_digest(query)
        return query["content"].encode() if query.get("content") else None

    def _by_digest(self, query: Mapping[str, str]) -> bytes:
        inspection = self._reader.client.inspect(_no_stream(self._reader.topic(query.get("topic", ""))))
        place, slots = query.get("place", ""), [whole_number(query.get("slot", ""), "slot")]
        for page in search_pages(inspection, None, 10_000, places=(_place(place),), slots=slots):
            for message in page.messages:
                if digest(message.content) == query["sha256"]:
                    return message.content
        raise InvalidValueError(f"the message was not found in {place}; search for it again")

    def dead(self, request: Request) -> Response:
        """Show dead letters with their errors, and the actions on them."""
        query, name = request.query_params, request.query_params.get("topic", "")
        topics = sorted(self._reader.overview().topics, key=lambda each: -each.figures.dead)
        if not name:
            rows = self._reasons_of([each for each in topics if each.figures.dead])
            return self._pages.render(request, "dead_topics.html", rows=rows)
        now = self._reader.topic_now(name)
        values: dict[str, Any] = {
            "topics": topics, "name": name, "pattern": query.get("pattern", ""), "error": query.get("error", ""),
            "topic": now.topic, "jobs": self._jobs.of(name),
        }  # fmt: skip
        if now.topic.type is TopicType.STREAM:
            return self._dead_of_stream(request, values, [group.group for group in now.groups])
        inspection = self._reader.client.inspect(now.topic)
        page = inspection.search(
            values["pattern"] or "*", places=("dead",), cursor=query.get("cursor") or None, limit=PAGE, budget=BUDGET
        )
        rows = [each for each in page.messages if not values["error"] or each.error_type == values["error"]]
        reasons = self._reader.reasons(now.topic)
        values |= {"page": page, "rows": rows, "reasons": reasons, "sizes": now.figures}
        return self._pages.render(request, "dead.html", **values)

    def _reasons_of(self, topics: Sequence[TopicReading]) -> list[DeadRow]:
        """Return the dead messages of topics by topic or group, and type of error, most first."""
        rows: list[DeadRow] = []
        for each in topics[:MOST_TOPICS]:
            name = each.topic.name
            rows += [DeadRow(name, group.group, None, group.dead) for group in each.groups if group.dead]
            if each.stats is not None:
                reasons = self._reader.reasons(each.topic)
                rows += [DeadRow(name, "", error, reasons.estimate(error), reasons.exact) for error in reasons.counts]
        return sorted(rows, key=lambda row: -row.number)

    def _dead_of_stream(self, request: Request, values: dict[str, Any], groups: Sequence[str]) -> Response:
        group = request.query_params.get("group") or (groups[0] if groups else "")
        rows = list(self._reader.client.stream(values["topic"]).dead(group).list(limit=PAGE)) if group else []
        values |= {"groups": groups, "group": group, "rows": rows}
        return self._pages.render(request, "dead_stream.html", **values)

    def audit(self, request: Request) -> Response:
        """Show a topic's audit log."""
        topics = self._reader.topics()
        name = request.query_params.get("topic") or (topics[0].name if topics else "")
        lines: Sequence[Any] = self._reader.audit(self._reader.topic(name), 100) if name else ()
        return self._pages.render(request, "audit.html", topics=topics, name=name, lines=lines)


def is_uneven(now: TopicReading) -> bool:
    """Return whether the slots of a topic differ enough to be looked at: some are paused, or one has most messages."""
    slots = now.stats.slots if now.stats is not None else ()
    most = max((slot.backlog for slot in slots), default=0)
    uneven = len(slots) > 1 and most >= 100 and most > 4 * sum(slot.backlog for slot in slots) / len(slots)
    return uneven or 0 < now.paused < len(slots)


def _part_of(request: Request, rows: Sequence[Any]) -> dict[str, Any]:
    """Return the values of a table: its rows on this page, and the start of the next page, 0 for the last page."""
    first = whole_number(request.query_params.get("first") or "0", "first")
    last = first + SLOT_ROWS
    return {"rows": rows[first:last], "first": first, "more": last if last < len(rows) else 0}


def slot_basis(topic: Topic, content: bytes, slot: str) -> bytes | None:
    """Return a slot basis that maps to the slot of a message; `None` if it needs none."""
    if not slot:
        return None
    [number] = checked_slots(topic, [whole_number(slot, "slot")])
    return None if topic.slot_of(content) == number else basis_for(topic, number)


def from_hex(text: str) -> bytes:
    """Parse hexadecimal digits into bytes."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidValueError(f"hex is {text[:40]!r}; it must be pairs of hexadecimal digits") from None


def whole_number(text: str, name: str) -> int:
    """Parse a whole number of up to 16 digits; `name` is for the error."""
    if not text.isascii() or not text.isdecimal() or len(text) > 16:
        raise InvalidValueError(f"{name} is {text[:40]!r}; it must be a whole number")
    return int(text)


def _no_stream(topic: Topic) -> Topic:
    if topic.type is TopicType.STREAM:
        raise InvalidValueError(f"topic {topic.name} is a stream topic; its entries cannot be searched by content")
    return topic


def _place(text: str) -> AnyPlace:
    for place in SECTIONS:
        if text == place:
            return place
    raise InvalidValueError(f"place is {text[:40]!r}; it must be one of {', '.join(SECTIONS)}")


def _range(request: Request) -> str:
    chosen = request.query_params.get("range", "1h")
    return chosen if chosen in RANGES else "1h"


def _running(workers: Sequence[WorkerInfo]) -> list[tuple[int, WorkerInfo, ListenerInfo, RunningHandler]]:
    """Return the running handlers with their running times now, ms, the longest first."""
    pairs = [(worker, each) for worker in workers for each in worker.listeners]
    rows = [(one.running_ms + worker.silent_ms, worker, each, one) for worker, each in pairs for one in each.running]
    return sorted(rows, key=lambda row: -row[0])


def _slots_of(name: str, owners: Mapping[int, str]) -> str:
    """Return an owner's slots as ranges: `0-3, 7`."""
    return _ranges(slot for slot, owner in owners.items() if owner == name)


def _ranges(slots: Iterable[int]) -> str:
    parts: list[str] = []
    for _, run in itertools.groupby(enumerate(sorted(slots)), key=lambda pair: pair[1] - pair[0]):
        numbers = [slot for _, slot in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ", ".join(parts)


def _results_of(reader: Reader, asked: str) -> Results:
    """Return the results of a search, exact names first, then messages and entries with this content."""
    lowered = asked.lower()
    names = [Result("topic", each.name, f"/topic/{quote(each.name)}") for each in reader.topics()]
    for now in reader.overview().topics:
        name, page = now.topic.name, f"/topic/{quote(now.topic.name)}/group/"
        names += [Result("group", group.group, page + quote(group.group), f"of {name}") for group in now.groups]
    names += [Result("worker", each.name, f"/worker/{quote(each.name)}") for each in reader.workers()]
    names += [Result("schedule", each.name, link("/schedules", filter=each.name)) for each in reader.schedules()]
    rows = [each for each in names if lowered in each.name.lower()]
    rows.sort(key=lambda each: (each.name != asked, not each.name.lower().startswith(lowered)))
    found, whole, partly = _messages_of(reader, asked)
    return [*found, *_entries_of(reader, asked), *rows], whole, partly


def _messages_of(reader: Reader, content: str) -> Results:
    """Search a content in all topics: in all of their slots, and beyond `MOST_SLOTS` in the slot of the content."""
    rows, whole, partly, left, until_s = list[Result](), 0, 0, MOST_SLOTS, monotonic_s() + MOST_SEARCH_S
    for topic in [each for each in reader.topics() if each.type is not TopicType.STREAM]:
        everywhere = topic.slots <= left
        left -= topic.slots if everywhere else 1
        if left < -MOST_SLOTS or monotonic_s() > until_s:
            partly += 1
            continue
        whole, partly = whole + everywhere, partly + (not everywhere)
        try:
            found = reader.client.inspect(topic).find(content, everywhere=everywhere)
        except RedisUnavailableError:
            raise
        except RmqError:  # a topic that cannot be read, or whose contents cannot be as long
            continue
        if not found.gone:
            address = message_link(topic.name, found.slot, found.content, "")
            rows.append(Result("message", content, address, f"in {topic.name}", found))
    return rows, whole, partly


def _entries_of(reader: Reader, content: str) -> list[Result]:
    """Return the entries of streams with a content that handlers have by the workers' last reports."""
    rows: list[Result] = []
    for ms, worker, each, one in _running(reader.workers()):
        if each.group and one.content == shown(content, 100):
            more = f"of {each.topic} @ {each.group}, handled for {span(ms)} by {worker.name}"
            rows.append(Result("entry", content, f"/worker/{quote(worker.name)}", more))
    return rows
