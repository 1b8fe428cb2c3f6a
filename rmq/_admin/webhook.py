"""Posts dead messages to a URL."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, cast
from urllib.parse import urlsplit

from rmq._admin.messages import DeadEntry, DeadMessage
from rmq._model.times import check_day
from rmq.errors import InvalidValueError, WebhookError

SIGNATURE, SIGNED_AT = "X-RMQ-Signature", "X-RMQ-Timestamp"

_ADDRESS = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")


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
