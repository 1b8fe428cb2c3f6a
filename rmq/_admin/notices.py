"""Notifications of dead messages: a background thread reads new ones and calls a function with them.

A `Webhook` is such a function: it posts the messages to a URL.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, Self, cast
from urllib.parse import urlsplit

from rmq._admin.calls.dead import Turn, Untold
from rmq._admin.messages import DeadEntry, DeadMessage
from rmq._io.backend import Background
from rmq._io.reports import Sparing, reporter
from rmq._model.handlers import refuse_unfinished
from rmq._model.settings import check_name
from rmq._model.times import check_day
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_slots
from rmq.errors import InvalidValueError, RedisUnavailableError, RmqError, WebhookError

log = reporter("rmq.notices")

Tell = Callable[[list[Any]], object]
"""Function that is called with dead messages: a list of `DeadMessage`, or on a stream topic of `DeadEntry`."""

AT_ONCE = 100
"""Maximum number of dead messages in one call of the function."""

TRIP = 8
"""Slots read in one round trip; each may return 4 MiB."""

HOLD_S = 60.0
"""Time after the next check in which no other process calls its function. Then one takes over from a crashed one."""
LONGEST_PAUSE_S = 60.0
"""Maximum pause before the function is called again after failures."""

PATIENCE_S = 10.0
"""Maximum time that `close` waits for a running call."""

SIGNATURE, SIGNED_AT = "X-RMQ-Signature", "X-RMQ-Timestamp"

_ADDRESS = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class _NotifyFailedError(Exception):
    """The function raised; its error is the cause."""


BuildUnnotified = Callable[[int, Turn, int], Call[Untold[Any]]]


class DeadNotifier(Background):
    """Calls a function with the messages that die in a topic, until it is closed.

    Args:
        connections: Connections of the client.
        topic: The topic.
        build: Builds the call that reads a slot's next dead messages.
        tell: The function to call.
        name: Name of the subscription.
        every_s: Seconds between two checks.
    """

    def __init__(
        self, connections: Connections, topic: Topic, build: BuildUnnotified, tell: Tell, *, name: str, every_s: float
    ) -> None:
        check_day("every_s", every_s, 0.01)
        check_name("name", name, most=64)
        super().__init__(connections.runtime, f"rmq-dead-{topic.name}")
        self._connections, self._build, self._tell = connections, build, tell
        self._about, self._every_s = topic.name, every_s
        turn = Turn(name, uuid.uuid4().hex, int((HOLD_S + every_s) * 1_000))
        self._turns = dict.fromkeys(range(topic.slots), turn)
        self._first = 0
        self._troubles = Sparing()
        self.failures = 0

    def begin(self) -> Self:
        """Record the position to start from, raising its errors to the caller, and start the thread."""
        call_slots(self._connections, list(self._turns), lambda slot: self._build(slot, self._turns[slot], 0))
        self.start()
        self._connections.close_with_us(self)
        return self

    def run(self) -> None:
        """Check regularly. Errors are logged, and the check is repeated."""
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            wait_s = self._every_s
            try:
                if self._look():
                    wait_s = 0.0
                self.failures = 0
            except _NotifyFailedError as failed:
                self.failures += 1
                wait_s = self.pause_s(self._every_s, self.failures)
                kind, error = type(failed.__cause__).__name__, failed.__cause__
                text = "on_dead function of topic %s failed; retrying in %.1f s: %s: %s"
                self._troubles.warning(log, kind, text, self._about, wait_s, kind, error)
            except Exception as error:
                self._troubles.warning(
                    log, type(error), "cannot read dead messages of topic %s: %s", self._about, error
                )

    @staticmethod
    def pause_s(every_s: float, failures: int) -> float:
        """Return the seconds to wait before the next check, after a number of successive failures."""
        return min(max(LONGEST_PAUSE_S, every_s), every_s * 2 ** min(failures, 20))

    def _look(self) -> bool:
        """Call the function for all slots with new dead messages; return whether there may be more.

        An error of the function ends the check. A slot that cannot be read does not: its error is logged, and the next
        check reads it again.
        """
        slots = [*range(self._first, len(self._turns)), *range(self._first)]
        more = False
        for at in range(0, len(slots), TRIP):
            part = slots[at : at + TRIP]
            calls = [self._build(slot, self._turns[slot], AT_ONCE) for slot in part]
            replies = self._connections.run_many(calls)
            if all(isinstance(reply, RedisUnavailableError) for reply in replies):
                raise replies[0]
            for slot, unnotified in zip(part, replies, strict=True):
                if self._stopping.is_set():
                    return False
                if isinstance(unnotified, RmqError):
                    text = "cannot read dead messages of topic %s in slot %d: %s"
                    self._troubles.warning(log, type(unnotified), text, self._about, slot, unnotified)
                    continue
                # start with the next slot next time: errors of one must not delay the others
                self._first = (slot + 1) % len(self._turns)
                if unnotified.dead:
                    self._notify(list(unnotified.dead))
                self._turns[slot] = self._turns[slot].done(unnotified)
                more = more or unnotified.more
        return more

    def _notify(self, dead: list[Any]) -> None:
        try:
            refuse_unfinished(self._tell(dead))
        except (Exception, SystemExit) as error:  # SystemExit would end this thread without a log entry
            raise _NotifyFailedError from error

    def close(self) -> None:
        """Stop, wait up to 10 s for a running call, and let another process take over at once."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self.join(PATIENCE_S)
        if self.is_alive():  # another process takes over after HOLD_S
            return
        try:
            call_slots(self._connections, list(self._turns), self._release_turn)
        except RmqError as error:
            log.debug("topic %s: the lock on notices of dead messages was not released: %s", self._about, error)

    def _release_turn(self, slot: int) -> Call[Untold[Any]]:
        turn = self._turns[slot]
        return self._build(slot, Turn(turn.name, turn.holder, 0, turn.since, turn.after), 0)


class DeadNotices:
    """Calls a function with messages that die, until it is closed. Returned by `on_dead` of the dead letters.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs)
        >>> with client.dead(jobs).on_dead(print) as notices:
        ...     notices.failures
        0
    """

    def __init__(self, notifier: DeadNotifier) -> None:
        self._notifier = notifier

    @property
    def failures(self) -> int:
        """Number of successive failed calls. The same messages are passed again until a call succeeds."""
        return self._notifier.failures

    def close(self) -> None:
        """Stop, and wait up to 10 s for a running call, so that another process can take over at once.

        If the call still runs then, another process takes over up to `every_s` and a minute later.
        """
        self._notifier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Webhook:
    """Posts dead messages as JSON to a URL; a function for `on_dead` of the dead letters.

    Args:
        url: `http://` or `https://` URL without user and password. Redirects are not followed.
        secret: Key to sign each post. The header `X-RMQ-Timestamp` has the time of the post in seconds since 1970;
            `X-RMQ-Signature` has `sha256=` and the HMAC-SHA256 of that number, a dot, and the post's body. Refuse old
            timestamps, to prevent replays of recorded posts.
        headers: Further headers, such as `Authorization`.
        timeout_s: Seconds to wait for the connection, and for each part of the response: 0.001 to a day.

    Raises:
        InvalidValueError: The URL, a header or the timeout is invalid. The message does not contain secrets.

    Guarantee: a post is complete with a status from 200 to 299, and repeated after any other. Message bodies are not
        posted.

    Examples:
        >>> jobs = client.producer(Topic("jobs", TopicType.PRIORITY)).topic
        >>> notices = client.dead(jobs).on_dead(Webhook("https://alerts.example/dead", secret=b"our secret"))
        >>> notices.close()
    """

    def __init__(
        self,
        url: str,
        *,
        secret: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        _check_types(url, secret, headers or {})
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            raise InvalidValueError("the webhook URL is invalid; its host or port cannot be read") from None
        if not usable:
            raise InvalidValueError("the webhook URL must begin with http:// or https:// and have a host")
        if not _ADDRESS.fullmatch(url):  # the error of `http.client` would contain it
            raise InvalidValueError(
                "the webhook URL has a space or a character that is not printable ASCII; percent-encode it, as in %20"
            )
        if "@" in parts.netloc:  # `http.client` would treat them as part of the host
            raise InvalidValueError(
                "the webhook URL has a user or a password; pass them as headers={'Authorization': ...}"
            )
        _check_headers(headers or {})
        check_day("timeout_s", timeout_s, 0.001)
        self._url, self._secret, self._timeout_s = url, secret, timeout_s
        self._headers = dict(headers or {})
        self._shown = f"{parts.scheme}://{parts.hostname}"  # the rest may contain secrets
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, dead: Sequence[DeadMessage]) -> None:
        """Post dead messages of one topic.

        Raises:
            WebhookError: There is no response, or its status is not 200 to 299.
        """
        if not dead:
            return
        content = json.dumps({"topic": dead[0].topic, "dead": [document(each) for each in dead]}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "rmq", **self._headers}
        if self._secret is not None:
            headers[SIGNED_AT] = str(int(time.time()))
            signed = f"{headers[SIGNED_AT]}.".encode() + content
            headers[SIGNATURE] = "sha256=" + hmac.new(self._secret, signed, hashlib.sha256).hexdigest()
        request = urllib.request.Request(self._url, content, headers, method="POST")  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                pass
        except urllib.error.HTTPError as error:
            with error:
                raise WebhookError(f"webhook {self._shown} returned status {error.code}") from None
        except OSError as error:
            raise WebhookError(f"cannot post to webhook {self._shown}: {error}") from error
        except (HTTPException, ValueError) as error:  # their texts may contain a header, or a part of the URL
            raise WebhookError(f"cannot post to webhook {self._shown}: {type(error).__name__}") from None

    def __repr__(self) -> str:
        return f"<Webhook to {self._shown}>"


def _check_types(url: Any, secret: Any, headers: Any) -> None:
    """Raise for an argument of a wrong type; a secret of type `str` would fail only at the first post."""
    if not isinstance(url, str):
        raise InvalidValueError(f"the webhook URL is of type {type(url).__name__}; it must be text")
    if secret is not None and not isinstance(secret, bytes):
        raise InvalidValueError(f"the webhook secret is of type {type(secret).__name__}; it must be bytes: b'...'")
    if not isinstance(headers, Mapping):
        raise InvalidValueError(f"the webhook headers are of type {type(headers).__name__}; they must be a dictionary")
    if not all(isinstance(part, str) for header in cast("Mapping[Any, Any]", headers).items() for part in header):
        raise InvalidValueError("the name and the value of each webhook header must be strings")


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raise for headers that cannot be sent. The error has the header's name if it is valid, and never its value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValueError(
                "a webhook header has an invalid name; it must consist of letters, digits and !#$%&'*+-.^_`|~"
            )
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidValueError(f"the value of webhook header {name} must be ISO 8859-1 without control characters")


def document(dead: DeadMessage) -> dict[str, Any]:
    """Return the JSON document of a dead message."""
    fields: dict[str, Any] = {"slot": dead.slot, "content": dead.text}
    try:
        dead.content.decode()
    except UnicodeDecodeError:
        fields["content_base64"] = base64.b64encode(dead.content).decode()
    if isinstance(dead, DeadEntry):
        fields |= {"group": dead.group, "id": dead.id}
    for name in ("died_ms", "error_type", "error_message", "attempts", "first_failed_ms", "last_failed_ms"):
        fields[name] = getattr(dead, name)
    return fields


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirects, since they would repeat the post as a GET without its body."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        """Return `None`, so that the redirect is not followed."""
        del args, options
