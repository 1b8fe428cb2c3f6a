"""The actions of the forms. Each is a POST with a token; actions that cannot be undone ask for confirmation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from rmq import Control, ControlResult, DeadFilter, DeadLetters, GroupDead, Inspection, Redriven, Topic, TopicType
from rmq.dashboard.background import Jobs
from rmq.dashboard.pages import from_hex, slot_basis, whole_number
from rmq.dashboard.queries import Reader
from rmq.dashboard.rendering import Pages
from rmq.errors import InvalidValueError, RmqError
from rmq.spi import counted, shown
from rmq.views.reading import search_pages

Form = Mapping[str, str]
Done = tuple[str, str]
"""Result of an action: `good` or `bad`, and the text to show."""

Report = Callable[[int], None]

WORDS = {
    ControlResult.DONE: ("good", "done"),
    ControlResult.IN_FLIGHT: ("bad", "nothing done: the message is in flight"),
    ControlResult.ABSENT: ("bad", "nothing done: the message is neither in the backlog nor waiting for a retry"),
    Redriven.DONE: ("good", "sent again"),
    Redriven.MERGED: ("good", "merged with the message in the backlog"),
    Redriven.ABSENT: ("bad", "nothing done: the message is no longer dead"),
    True: ("good", "deleted"),
    False: ("bad", "nothing done: the message is no longer dead"),
}
"""Result of an action on one message -> `good` or `bad`, and the text to show."""


class Actions:
    """Handles the requests that change topics and messages."""

    def __init__(self, pages: Pages, jobs: Jobs) -> None:
        self._pages = pages
        self._reader: Reader = pages.reader
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """Return the routes of all actions."""
        actions: dict[str, Callable[[Form, str], Done]] = {
            "pause": lambda form, actor: self._switch(form, actor, "pause"),
            "resume": lambda form, actor: self._switch(form, actor, "resume"),
            "redrive-all": self._redrive,
            "redrive-group": self._redrive,
            "purge-all-dead": self._purge_dead,
            "purge-group": self._purge_dead,
            "purge": self._purge,
            "cancel-matching": self._cancel_matching,
            "run-schedule": lambda form, actor: self._schedule(form, actor, "run_now"),
            "remove-schedule": lambda form, actor: self._schedule(form, actor, "remove"),
            **{f"{name}-selected": partial(self._change_selected, name) for name in SELECTED},
            **{name: partial(self._change, name) for name in CHANGES},
        }
        return [
            Route(f"/do/{name}", self._endpoint(name, action), methods=["POST"]) for name, action in actions.items()
        ]

    def _endpoint(self, name: str, action: Callable[[Form, str], Done]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if self._pages.settings.read_only:
                return PlainTextResponse("This dashboard is read-only.\n", 403)
            submitted = await request.form(max_files=0, max_fields=MOST_FIELDS)
            form = {name: value for name, value in submitted.items() if isinstance(value, str)}
            refusal = self._pages.forms.refusal(request, form)
            if refusal is not None:
                return PlainTextResponse(f"{refusal}\n", 403)
            return await run_in_threadpool(self._carry_out, request, name, action, form)

        return endpoint

    def _carry_out(self, request: Request, name: str, action: Callable[[Form, str], Done], form: Form) -> Response:
        actor = f"{request.scope.get('rmq_user') or 'somebody'}@dashboard"
        try:
            question = self._question(name, form)
            if question is not None:
                fields = [(key, value) for key, value in form.items() if key not in ("token", "confirm", "yes")]
                typed = name in TYPED
                return self._pages.render(
                    request, "confirm.html", action=name, fields=fields, question=question, typed=typed,
                    verb="Cancel message" if name == "cancel" else name.partition("-")[0].capitalize(),
                    name=form.get("topic", ""), back=_local(form.get("back", "/")), wrong=bool(form.get("confirm")),
                )  # fmt: skip
            kind, text = action(form, actor)
        except InvalidValueError as error:
            kind, text = "bad", str(error)
        except RmqError as error:
            return self._pages.failed(request, error)
        self._reader.cache.drop()
        response = RedirectResponse(_local(form.get("back", "/")), 303)
        self._pages.forms.set_note(response, kind, text)
        return response

    def _question(self, name: str, form: Form) -> str | None:
        """Return the confirmation question of an action; `None` once it is confirmed."""
        typed = name in TYPED and form.get("confirm") != form.get("topic")
        if not typed and (name not in ASKED or form.get("yes") == "yes"):
            return None
        question = TYPED[name] if typed else ASKED[name]
        return question.format(**_words(form), count=self._count(name, form) if "{count}" in question else "")

    def _switch(self, form: Form, actor: str, verb: Literal["pause", "resume"]) -> Done:
        """Pause or resume a topic, a slot or a group in the whole cluster."""
        topic = self._topic(form)
        if topic.type is TopicType.STREAM:
            stream, group = self._reader.client.stream(topic), _field(form, "group")
            changed = stream.pause(group, actor) if verb == "pause" else stream.resume(group, actor)
        else:
            control = self._reader.client.control(topic, actor=actor)
            slots = [whole_number(form["slot"], "slot")] if form.get("slot") else None
            changed = control.pause(slots) if verb == "pause" else control.resume(slots)
        return "good", f"{verb}d {changed:,} {'slot' if changed == 1 else 'slots'} of {topic.name}"

    def _change(self, name: str, form: Form, actor: str) -> Done:
        """Apply an action to one message."""
        topic, content = self._topic(form), from_hex(_field(form, "hex"))
        basis = slot_basis(topic, content, form.get("slot", ""))
        kind, words = WORDS[CHANGES[name](self._reader.client.control(topic, actor=actor), content, basis, form)]
        return kind, f"{name.removesuffix('-dead')}: {words}"

    def _change_selected(self, name: str, form: Form, actor: str) -> Done:
        """Apply an action to each of the selected messages of a list."""
        topic = self._topic(form)
        control, results = self._reader.client.control(topic, actor=actor), Counter[str]()
        for slot, content in _selected(name, form):
            basis = slot_basis(topic, content, str(slot))
            results[WORDS[CHANGES[name](control, content, basis, form)][1].removeprefix("nothing done: ")] += 1
        counts = [f"{number:,} {words}" for words, number in results.most_common()]
        return "good" if results else "bad", f"{name.removesuffix('-dead')}: {', '.join(counts) or 'nothing selected'}"

    def _cancel_matching(self, form: Form, actor: str) -> Done:
        """Cancel all matching messages that are queued or wait for a retry, in the background."""
        control, pattern = self._reader.client.control(self._topic(form), actor=actor), _field(form, "pattern")

        def work(report: Report) -> str:
            found = control.cancel_matching(pattern, progress=report)
            return f"{found.cancelled:,} cancelled" + (f", {found.in_flight:,} in flight" if found.in_flight else "")

        return self._in_background(form, f"cancel of messages{_of(form)}", work)

    def _schedule(self, form: Form, actor: str, verb: Literal["run_now", "remove"]) -> Done:
        """Make a schedule due now, or remove it."""
        name, schedules = _field(form, "schedule"), self._reader.client.schedules
        done = schedules.run_now(name, actor) if verb == "run_now" else schedules.remove(name, actor)
        words = f"schedule {name} {'is due now' if verb == 'run_now' else 'removed'}"
        return ("good", words) if done else ("bad", f"there is no schedule {name}")

    def _count(self, name: str, form: Form) -> str:
        """Return the number of messages that an action is about, in words."""
        if (each := name.removesuffix("-selected")) in SELECTED:
            return counted(len(_selected(each, form)), "message")
        if name in ("purge", "cancel-matching"):
            view = self._reader.client.inspect(self._topic(form))
            if name == "cancel-matching":
                return _at_most(_matches(view, _field(form, "pattern")), "message")
            return counted(getattr(view.stats(), "backlog" if _state(form) == "store" else "waiting"), "message")
        dead, _, where = self._dead(form)
        if where == DeadFilter():
            nouns = ("dead entry", "dead entries") if isinstance(dead, GroupDead) else ("dead message",)
            return counted(dead.count(), *nouns)
        return _at_most(sum(1 for _ in dead.list(where, MOST_COUNTED + 1)), "dead message")

    def _redrive(self, form: Form, actor: str) -> Done:
        """Redrive all matching dead messages, or the dead entries of a group, in the background."""
        dead, which, where = self._dead(form, actor)
        rate = float(whole_number(form["rate"], "rate")) if form.get("rate") else None

        def work(report: Report) -> str:
            if isinstance(dead, GroupDead):
                result = dead.redrive(where, progress=report)
            else:
                result = dead.redrive(where, per_second=rate, progress=report)
            return f"{result.redriven:,} sent again, {result.merged:,} merged, {result.absent:,} no longer dead"

        return self._in_background(form, f"redrive of dead messages{which}", work)

    def _purge_dead(self, form: Form, actor: str) -> Done:
        """Delete all matching dead messages, or the dead entries of a group, in the background."""
        dead, which, where = self._dead(form, actor)
        return self._in_background(
            form, f"purge of dead messages{which}", lambda report: _dropped(dead.purge(where, progress=report))
        )

    def _dead(self, form: Form, actor: str | None = None) -> tuple[DeadLetters | GroupDead, str, DeadFilter]:
        topic = self._topic(form)
        if topic.type is TopicType.STREAM:
            group = _field(form, "group")
            return self._reader.client.stream(topic).dead(group, actor), f" of group {group}", _filter(form)
        return self._reader.client.dead(topic, actor=actor), _of(form), _filter(form)

    def _purge(self, form: Form, actor: str) -> Done:
        """Delete a topic's backlog, or its messages that wait for a retry, in the background."""
        topic, place = self._topic(form), _state(form)
        control = self._reader.client.control(topic, actor=actor)

        def work(report: Report) -> str:
            return _dropped(control.purge(place, confirm=topic.name, progress=report))

        return self._in_background(form, f"purge of {PLACES[place]}", work)

    def _in_background(self, form: Form, description: str, work: Callable[[Report], str]) -> Done:
        if not self._jobs.start(_field(form, "topic"), description, work):
            return "bad", "too many jobs are running; wait for one to finish"
        return "good", f"{description} started; see the progress below"

    def _topic(self, form: Form) -> Topic:
        return self._reader.topic(_field(form, "topic"))


def _due(form: Form) -> datetime:
    moment = _field(form, "at")
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        raise InvalidValueError(f"due time is {moment[:40]!r}; it must be a time such as 2026-01-31T14:30") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _priority(form: Form) -> int:
    return whole_number(_field(form, "priority"), "priority")


CHANGES: dict[str, Callable[[Control, bytes, bytes | None, Form], ControlResult | Redriven | bool]] = {
    "cancel": lambda control, content, basis, form: control.cancel(content, basis),
    "reschedule": lambda control, content, basis, form: control.reschedule(
        content, fixed_time=_due(form), slot_basis=basis
    ),
    "reprioritise": lambda control, content, basis, form: control.reprioritise(content, _priority(form), basis),
    "promote": lambda control, content, basis, form: control.promote(content, basis),
    "redrive": lambda control, content, basis, form: control.redrive(content, basis),
    "purge-dead": lambda control, content, basis, form: control.purge_dead(content, basis),
}
"""Actions on one message."""

PLACES = {"store": "the backlog", "retry": "the messages that wait for a retry"}
"""States that can be purged, with their descriptions."""

ALIVE: tuple[Literal["store", "retry"], ...] = ("store", "retry")
DEAD = ("dead",)
SELECTED = {"cancel": ALIVE, "promote": ALIVE, "redrive": DEAD, "purge-dead": DEAD}
"""Actions on the selected messages of a list -> states of the messages that they change."""

MOST_FIELDS = 120
"""Maximum number of fields of a form: a page of selected messages, and a few more."""

MOST_COUNTED = 10_000
"""Number up to which matching messages are counted before an action."""

ASKED = {
    "cancel": "Cancel {message} in topic {topic}?",
    "purge-dead": "Permanently delete the dead message {message} of topic {topic}?",
    "redrive-all": "Send {count} of topic {topic}{which} again{rate}?",
    "redrive-group": "Deliver {count} of group {group} on topic {topic} again?",
    "cancel-selected": "Cancel {count} of topic {topic}?",
    "promote-selected": "Make {count} of topic {topic} due now?",
    "redrive-selected": "Send {count} of topic {topic} again?",
    "remove-schedule": "Remove the schedule {schedule}? It sends no more messages.",
    "purge-dead-selected": "Permanently delete {count} of topic {topic} from the dead letters?",
}
"""Actions that ask for confirmation."""

TYPED = {
    "purge-all-dead": "Permanently delete {count} of topic {topic}{which}?",
    "purge": "Permanently delete {place} of topic {topic}: {count}?",
    "purge-group": "Permanently delete {count} of group {group} on topic {topic}?",
    "cancel-matching": "Cancel {count} of topic {topic}{which}, queued or waiting for a retry?",
}
"""Actions that require the topic's name as confirmation."""


def _words(form: Form) -> dict[str, str]:
    try:
        message = shown(bytes.fromhex(form.get("hex", "")), 80)
    except ValueError:
        message = "?"
    names = {name: form.get(name, "?") for name in ("topic", "group", "schedule")}
    rate = f", up to {form['rate'][:16]} per second" if form.get("rate") else ""
    return names | {
        "message": message,
        "rate": rate,
        "place": PLACES.get(form.get("place", ""), "?"),
        "which": _of(form),
    }


def _of(form: Form) -> str:
    parts = [f"with error {shown(form['error'], 80)}"] if form.get("error") else []
    parts += [f"matching {shown(form['pattern'], 80)}"] if form.get("pattern") else []
    return "".join(f" {part}" for part in parts)


def _filter(form: Form) -> DeadFilter:
    """Return the filter for dead messages; raise for patterns that the list on the page interprets differently."""
    if any(part in form.get("pattern", "") for part in ("\\", "[^", "[!")):
        raise InvalidValueError("the pattern of this action may contain *, ? and [...], but not [^, [! or a backslash")
    return DeadFilter(matching=form.get("pattern") or None, error_type=form.get("error") or None)


def _selected(action: str, form: Form) -> list[tuple[int, bytes]]:
    """Return slot and content of the selected messages whose state the action is for.

    A content may be queued and dead at once, so that its rows differ in nothing but their state.
    """
    picked = [value.partition(":") for name, value in form.items() if name.startswith("pick")]
    parts = [rest.partition(":") for place, _, rest in picked if place in SELECTED[action]]
    return [(whole_number(slot, "slot"), from_hex(content)) for slot, _, content in parts]


def _matches(view: Inspection, pattern: str) -> int:
    """Count the matching messages that are queued or wait for a retry, until they are more than `MOST_COUNTED`."""
    return sum(len(page.messages) for page in search_pages(view, pattern, MOST_COUNTED + 1, places=ALIVE))


def _state(form: Form) -> Literal["store", "retry"]:
    place = _field(form, "place")
    if place not in ("store", "retry"):
        raise InvalidValueError(f"place is {place[:40]!r}; it must be store or retry")
    return place


def _at_most(number: int, what: str) -> str:
    return f"more than {MOST_COUNTED:,} {what}s" if number > MOST_COUNTED else counted(number, what)


def _field(form: Form, name: str) -> str:
    value = form.get(name, "")
    if not value:
        raise InvalidValueError(f"{name} is missing")
    return value


def _local(address: str) -> str:
    """Return a local address; any other address is replaced by the first page."""
    ours = address.startswith("/") and not address.startswith(("//", "/\\", "/do/")) and address.isprintable()
    return address if ours and "\\" not in address else "/"


def _dropped(number: int) -> str:
    return f"{number:,} deleted"
