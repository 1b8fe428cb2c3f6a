"""What the forms do. Each is a POST with a token; what cannot be undone asks once more before it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from rmq._admin.dead_letters import DeadFilter
from rmq._model.display import shown
from rmq._model.replies import ControlResult, Redriven
from rmq._model.topics import Topic, TopicType
from rmq.dashboard.background import Jobs
from rmq.dashboard.pages import from_hex, slot_basis, whole_number
from rmq.dashboard.queries import Reader
from rmq.dashboard.rendering import Pages
from rmq.errors import InvalidValueError, RmqError

Form = Mapping[str, str]
Done = tuple[str, str]
"""`good` or `bad`, and what came of it in words."""

WORDS = {
    ControlResult.DONE: ("good", "done"),
    ControlResult.IN_FLIGHT: ("bad", "not touched: a handler has it"),
    ControlResult.ABSENT: ("bad", "nothing done: the message is neither in the backlog nor waiting"),
    Redriven.DONE: ("good", "sent again"),
    Redriven.MERGED: ("good", "merged with a fresh copy in the backlog"),
    Redriven.ABSENT: ("bad", "nothing done: the message is not dead any more"),
}


class Actions:
    """Answers what changes something.

    Args:
        pages: Renders.
        jobs: What runs in the background.
    """

    def __init__(self, pages: Pages, jobs: Jobs) -> None:
        self._pages = pages
        self._reader: Reader = pages.reader
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """Return where each action is."""
        actions: dict[str, Callable[[Form, str], Done]] = {
            "pause": self.pause,
            "resume": self.resume,
            "cancel": self.cancel,
            "reschedule": self.reschedule,
            "reprioritise": self.reprioritise,
            "promote": self.promote,
            "redrive": self.redrive,
            "purge-dead": self.purge_dead,
            "redrive-all": self.redrive_all,
            "purge-all-dead": self.purge_all_dead,
            "purge": self.purge,
            "redrive-group": self.redrive_group,
            "purge-group": self.purge_group,
        }
        return [
            Route(f"/do/{name}", self._endpoint(name, action), methods=["POST"]) for name, action in actions.items()
        ]

    def _endpoint(self, name: str, action: Callable[[Form, str], Done]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if self._pages.settings.read_only:
                return PlainTextResponse("This dashboard is read-only.\n", 403)
            form = _texts(await request.form(max_files=0, max_fields=50))
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
        """Return what to ask before it is done, `None` once it was answered."""
        if name in TYPED:
            return None if form.get("confirm") == form.get("topic") else TYPED[name].format(**_words(form))
        if name in ASKED:
            return None if form.get("yes") == "yes" else ASKED[name].format(**_words(form))
        return None

    def pause(self, form: Form, actor: str) -> Done:
        """Stop claims on a topic, a slot or a group, on the whole cluster."""
        return self._switch(form, actor, "pause")

    def resume(self, form: Form, actor: str) -> Done:
        """Let claims go on."""
        return self._switch(form, actor, "resume")

    def _switch(self, form: Form, actor: str, verb: str) -> Done:
        topic = self._topic(form)
        if topic.type is TopicType.STREAM:
            stream = self._reader.client.stream(topic)
            changed = (
                stream.pause(_field(form, "group"), actor)
                if verb == "pause"
                else stream.resume(_field(form, "group"), actor)
            )
        else:
            control = self._reader.client.control(topic, actor=actor)
            slots = [whole_number(form["slot"], "slot")] if form.get("slot") else None
            changed = control.pause(slots) if verb == "pause" else control.resume(slots)
        return "good", f"{verb}d {changed:,} {'slot' if changed == 1 else 'slots'} of {topic.name}"

    def cancel(self, form: Form, actor: str) -> Done:
        """Take one message out."""
        topic, content, basis = self._message(form)
        return _said("cancel", self._reader.client.control(topic, actor=actor).cancel(content, slot_basis=basis))

    def reschedule(self, form: Form, actor: str) -> Done:
        """Give one message another due time."""
        topic, content, basis = self._message(form)
        control = self._reader.client.control(topic, actor=actor)
        moment = _field(form, "at")
        try:
            at = datetime.fromisoformat(moment)
        except ValueError:
            raise InvalidValueError(f"due must be a time such as 2026-01-31T14:30, not {moment[:40]!r}") from None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return _said("reschedule", control.reschedule(content, fixed_time=at, slot_basis=basis))

    def reprioritise(self, form: Form, actor: str) -> Done:
        """Give one message another priority."""
        topic, content, basis = self._message(form)
        control = self._reader.client.control(topic, actor=actor)
        priority = whole_number(_field(form, "priority"), "priority")
        return _said("reprioritise", control.reprioritise(content, priority, slot_basis=basis))

    def promote(self, form: Form, actor: str) -> Done:
        """Have one message delivered next."""
        topic, content, basis = self._message(form)
        return _said("promote", self._reader.client.control(topic, actor=actor).promote(content, slot_basis=basis))

    def redrive(self, form: Form, actor: str) -> Done:
        """Send one dead message again."""
        topic, content, basis = self._message(form)
        return _said("redrive", self._reader.client.control(topic, actor=actor).redrive(content, slot_basis=basis))

    def purge_dead(self, form: Form, actor: str) -> Done:
        """Drop one dead message for good."""
        topic, content, basis = self._message(form)
        there = self._reader.client.control(topic, actor=actor).purge_dead(content, slot_basis=basis)
        return (
            ("good", "purge: dropped for good") if there else ("bad", "nothing done: the message is not dead any more")
        )

    def redrive_all(self, form: Form, actor: str) -> Done:
        """Send all dead messages that match again, in the background."""
        topic, where = self._topic(form), _filter(form)

        def work(report: Callable[[int], None]) -> str:
            result = self._reader.client.dead(topic, actor=actor).redrive(where, progress=report)
            return f"{result.redriven:,} sent again, {result.merged:,} merged, {result.absent:,} gone meanwhile"

        return self._in_background(topic, f"redrive of the dead{_of(form)}", work)

    def purge_all_dead(self, form: Form, actor: str) -> Done:
        """Drop all dead messages that match for good, in the background."""
        topic, where = self._topic(form), _filter(form)

        def work(report: Callable[[int], None]) -> str:
            dropped = self._reader.client.dead(topic, actor=actor).purge(where, progress=report)
            return f"{dropped:,} dropped for good"

        return self._in_background(topic, f"purge of the dead{_of(form)}", work)

    def purge(self, form: Form, actor: str) -> Done:
        """Drop a topic's backlog, or what waits for its retry, for good, in the background."""
        topic, place = self._topic(form), _field(form, "place")
        if place not in ("store", "retry"):
            raise InvalidValueError("place must be store or retry")
        control = self._reader.client.control(topic, actor=actor)

        def work(report: Callable[[int], None]) -> str:
            return f"{control.purge(place, confirm=topic.name, progress=report):,} dropped for good"

        return self._in_background(topic, f"purge of {'the backlog' if place == 'store' else 'what waits'}", work)

    def redrive_group(self, form: Form, actor: str) -> Done:
        """Deliver the dead entries of a stream's group again."""
        topic, group = self._topic(form), _field(form, "group")
        dead = self._reader.client.stream(topic).dead(group, actor)

        def work(report: Callable[[int], None]) -> str:
            result = dead.redrive(_filter(form), progress=report)
            return f"{result.redriven:,} on their way again, {result.absent:,} gone meanwhile"

        return self._in_background(topic, f"redrive of the dead of group {group}", work)

    def purge_group(self, form: Form, actor: str) -> Done:
        """Drop the dead entries of a stream's group for good."""
        topic, group = self._topic(form), _field(form, "group")
        dead = self._reader.client.stream(topic).dead(group, actor)

        def work(report: Callable[[int], None]) -> str:
            return f"{dead.purge(_filter(form), progress=report):,} dropped for good"

        return self._in_background(topic, f"purge of the dead of group {group}", work)

    def _in_background(self, topic: Topic, what: str, work: Callable[[Callable[[int], None]], str]) -> Done:
        if not self._jobs.start(topic.name, what, work):
            return "bad", "too many jobs are running; wait until one has ended"
        return "good", f"{what} has begun; its progress is shown below"

    def _topic(self, form: Form) -> Topic:
        return self._reader.topic(_field(form, "topic"))

    def _message(self, form: Form) -> tuple[Topic, bytes, bytes | None]:
        topic, content = self._topic(form), from_hex(_field(form, "hex"))
        return topic, content, slot_basis(topic, content, form.get("slot", ""), form.get("basis", ""))


ASKED = {
    "cancel": "Take {message} out of topic {topic} for good?",
    "purge-dead": "Drop the dead message {message} of topic {topic} for good?",
    "redrive-all": "Send all dead messages of topic {topic}{which} again?",
    "redrive-group": "Deliver all dead entries of group {group} on topic {topic} again?",
}
"""Actions that ask for a yes."""

TYPED = {
    "purge-all-dead": "Drop all dead messages of topic {topic}{which} for good?",
    "purge": "Drop all of {place} on topic {topic} for good?",
    "purge-group": "Drop all dead entries of group {group} on topic {topic} for good?",
}
"""Actions that ask for the topic's name to be typed."""


def _words(form: Form) -> dict[str, str]:
    try:
        message = shown(bytes.fromhex(form.get("hex", "")), 80)
    except ValueError:
        message = "?"
    place = {"store": "the backlog", "retry": "what waits for its retry"}.get(form.get("place", ""), "?")
    return {
        "topic": form.get("topic", "?"), "group": form.get("group", "?"), "message": message, "place": place,
        "which": _of(form),
    }  # fmt: skip


def _of(form: Form) -> str:
    parts = [f"with error {shown(form['error'], 80)}"] if form.get("error") else []
    parts += [f"matching {shown(form['pattern'], 80)}"] if form.get("pattern") else []
    return "".join(f" {part}" for part in parts)


def _filter(form: Form) -> DeadFilter:
    """Return which dead are meant; a pattern that the list on the page would read differently is refused."""
    if any(part in form.get("pattern", "") for part in ("\\", "[^", "[!")):
        raise InvalidValueError("for this, the pattern may have * ? and [...], without ^, ! and backslash")
    return DeadFilter(matching=form.get("pattern") or None, error_type=form.get("error") or None)


def _field(form: Form, name: str) -> str:
    value = form.get(name, "")
    if not value:
        raise InvalidValueError(f"{name} is missing")
    return value


def _texts(form: FormData) -> dict[str, str]:
    return {name: value for name, value in form.items() if isinstance(value, str)}


def _local(address: str) -> str:
    """Return an address of ours; anything else leads to the first page."""
    ours = address.startswith("/") and not address.startswith(("//", "/\\", "/do/")) and address.isprintable()
    return address if ours and "\\" not in address else "/"


def _said(verb: str, result: ControlResult | Redriven) -> Done:
    kind, words = WORDS[result]
    return kind, f"{verb}: {words}"
