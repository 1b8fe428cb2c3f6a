"""Templates, escaping of payloads, and error pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from rmq import __version__
from rmq.dashboard.charts import short
from rmq.dashboard.queries import Reader, digest
from rmq.dashboard.security import NOTE_COOKIE, Forms, Settings
from rmq.errors import InvalidValueError, RedisUnavailableError, RmqError, UnknownTopicError
from rmq.spi import counted, safe_lines, shown, span
from rmq.views import words
from rmq.views.columns import plain
from rmq.views.findings import Finding

FAILURES: dict[type[RmqError], tuple[int, str]] = {
    UnknownTopicError: (404, "Not found"),
    InvalidValueError: (400, "Bad request"),
    RedisUnavailableError: (503, "Redis does not answer"),
}
REFRESH_MS = 3_000
LONGEST_LINK_BYTES = 1_024
MOST_TEXT, MOST_HEX_BYTES = 4_096, 512


@dataclass(frozen=True, slots=True)
class Payload:
    """A content or body in displayable form: text without control characters, or hexadecimal digits.

    Attributes:
        kind: `text`, or `hex` if it is not UTF-8.
        size: Its full length in bytes.
        cut: True if only the beginning is shown.
    """

    text: str
    kind: str
    size: int
    cut: bool


def payload(value: bytes, size: int | None = None) -> Payload:
    """Return a payload for display, cut to a few thousand characters. `size` is its length if `value` is a part."""
    whole = len(value) if size is None else size
    head = value[: 4 * MOST_TEXT]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        partial = error.start >= len(head) - 3 and whole > len(head)  # the cut has split a character
        if not partial:
            rows = "\n".join(value[first : first + 16].hex(" ") for first in range(0, min(whole, MOST_HEX_BYTES), 16))
            return Payload(rows, "hex", whole, whole > MOST_HEX_BYTES)
        text = head[: error.start].decode()
    lines = safe_lines(text[:MOST_TEXT])
    return Payload(lines, "text", whole, len(text) > MOST_TEXT or whole > len(head))


def message_link(topic: str, slot: int, content: bytes, place: str) -> str:
    """Return the address of a message's page. A long content is replaced by its digest, which the page searches for."""
    if len(content) <= LONGEST_LINK_BYTES:
        return link("/message", topic=topic, slot=slot, hex=content.hex())
    return link("/message", topic=topic, slot=slot, place=place, sha256=digest(content))


def link(path: str, **query: object) -> str:
    """Return a local address with the arguments that are not empty."""
    fields = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(fields)}" if fields else path


def finding_link(finding: Finding) -> str:
    """Return the address of the page that shows more about a finding."""
    topic, group, worker = (quote(name or "", safe="") for name in (finding.topic, finding.group, finding.worker))
    match finding.kind.value:
        case "no-worker" | "not-claimed" | "behind" | "held-back" | "full" | "unowned" | "unaccounted" if topic:
            return f"/topic/{topic}/group/{group}" if group else f"/topic/{topic}"
        case "dead-growing":
            return link("/dead", topic=finding.topic)
        case "failing" | "failing-again" if not group:
            return link("/search", topic=finding.topic, place="retry")
        case "paused":
            return link("/audit", topic=finding.topic)
        case _ if worker:
            return f"/worker/{worker}"
        case _:
            return f"/topic/{topic}" if topic else "/workers"


def percent(part: int, whole: int) -> str:
    """Return a share, such as `37.2%`; `–` if `whole` is 0."""
    return f"{100 * part / whole:.1f}%" if whole else "–"


def heading(column: str) -> str:
    """Return the heading of a column; a percentile stays as it is: `p99`."""
    name = plain(column)
    return name if name[1:].isdigit() else name[:1].upper() + name[1:]


def _changed(request: Request, **changes: str) -> str:
    """Return the address of the present page, with some query arguments changed."""
    return link(request.url.path, **{**request.query_params, **changes})


class Pages:
    """Renders the pages and error pages from templates."""

    def __init__(self, reader: Reader, settings: Settings, forms: Forms) -> None:
        self.reader = reader
        self.settings = settings
        self.forms = forms
        self._templates = Environment(
            loader=PackageLoader("rmq.dashboard", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        functions = [short, payload, message_link, link, percent, finding_link, words.dashed, shown]
        functions += [counted, span, words.when, words.from_now, words.milliseconds, words.count_words]
        functions += [words.items_words, words.merge_name, words.merge_words, words.sends_words, heading, plain]
        self._templates.globals.update({each.__name__: each for each in functions})  # pyright: ignore[reportUnknownMemberType]

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Render a template as the response to a request. `values` are passed to the template."""
        session = self.forms.session(request)
        html = self._templates.get_template(template).render(
            path=request.url.path,
            query=request.query_params,
            here=partial(_changed, request),
            address=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            token=self.forms.token(session),
            note=self.forms.take_note(request),
            read_only=self.settings.read_only,
            user=request.scope.get("rmq_user"),
            version=__version__,
            server=self.reader.client.shown_url,
            refresh_ms=REFRESH_MS,
            handler_of=self.reader.handler_of,
            **values,
        )
        response = HTMLResponse(html, status)
        self.forms.set_session(response, session)
        if request.cookies.get(NOTE_COOKIE) and request.headers.get("x-rmq-live") is None:
            response.delete_cookie(NOTE_COOKIE)
        return response

    def failed(self, request: Request, error: RmqError) -> Response:
        """Render the page for an error."""
        answers = (answer for kind, answer in FAILURES.items() if isinstance(error, kind))
        status, heading = next(answers, (500, "Failed"))
        return self.render(request, "error.html", status, heading=heading, text=str(error))
