"""Posts what dies to an address."""

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
from typing import Any
from urllib.parse import urlsplit

from rmq._model.entries import DeadEntry
from rmq._model.times import check_day
from rmq._model.whereabouts import DeadMessage
from rmq.errors import InvalidValueError, WebhookError

SIGNATURE, SIGNED_AT = "X-RMQ-Signature", "X-RMQ-Timestamp"

_ADDRESS = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class Webhook:
    """Posts dead messages as JSON to an address: what `on_dead` of the dead letters can call.

    Args:
        url: `http://` or `https://`, without a user and a password; redirects are not followed.
        secret: Signs each post. The header `X-RMQ-Timestamp` is the time of the post in seconds since 1970;
            `X-RMQ-Signature` is `sha256=` and the HMAC-SHA256 of that number, a dot, and the post's bytes. Refuse old
            times: whoever has recorded a post could send it again.
        headers: Further headers, such as `Authorization`.
        timeout_s: How long to wait for the connection, and for each part of the answer; from 1 ms.

    Raises:
        InvalidValueError: The address, a header or the time cannot be used. The text has no secrets.

    Guarantee: a status from 200 to 299 counts as told; all others are tried again. Bodies are not posted.

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
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            raise InvalidValueError("the webhook's address is no URL: http:// or https:// with a host") from None
        if not usable:
            raise InvalidValueError("the webhook's address must be http:// or https:// with a host")
        if not _ADDRESS.fullmatch(url):  # `http.client` would show it in its error
            raise InvalidValueError(
                "the webhook's address has a space, or a character that is not ASCII: encode it as %20"
            )
        if "@" in parts.netloc:  # `http.client` would take them for a part of the host
            raise InvalidValueError(
                "the webhook's address has a user or a password: give them as headers={'Authorization': ...}"
            )
        _check_headers(headers or {})
        check_day("timeout_s", timeout_s, 0.001)
        self._url, self._secret, self._timeout_s = url, secret, timeout_s
        self._headers = dict(headers or {})
        self._shown = f"{parts.scheme}://{parts.hostname}"  # the rest may hold secrets
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, dead: Sequence[DeadMessage]) -> None:
        """Post dead messages of one topic.

        Raises:
            WebhookError: No answer, or another one than success.
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
                raise WebhookError(f"{self._shown} answered with status {error.code}") from None
        except OSError as error:
            raise WebhookError(f"{self._shown} cannot be told: {error}") from error
        except (HTTPException, ValueError) as error:  # their texts may name a header, or a part of the address
            raise WebhookError(f"{self._shown} cannot be told: {type(error).__name__}") from None

    def __repr__(self) -> str:
        return f"<Webhook to {self._shown}>"


def _check_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that cannot be sent; name the header where its name can be one, and never its value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValueError("one of the webhook's headers has no name of letters, digits and hyphens")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidValueError(
                f"of the webhook's headers {name} has a character that none may have: strip line ends"
            )


def document(dead: DeadMessage) -> dict[str, Any]:
    """Return what is posted of a dead message."""
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
    """A redirect would repeat the post as a GET without its content."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        """Refuse."""
        del args, options
