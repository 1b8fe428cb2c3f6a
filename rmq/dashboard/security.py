"""Protection of the pages: access settings, host check, login, size limits, security headers, and form tokens."""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmq.errors import InvalidValueError
from rmq.spi import allows_host, is_loopback, monotonic_s, network_of

log = logging.getLogger("rmq.dashboard")

MOST_BODY_BYTES = 262_144
MOST_DROPPED_BYTES = 4_194_304
"""Maximum number of bytes read of a form that is too large, since browsers read no response while they send."""

TOKEN_AGE_S = 12 * 3_600
MOST_WRONG, WRONG_S, MOST_NETWORKS = 20, 60.0, 10_000
SESSION_COOKIE, NOTE_COOKIE = "rmq_session", "rmq_note"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # not no-referrer, with which browsers send our own forms with the origin `null`
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8642


@dataclass(frozen=True, slots=True)
class Credentials:
    """Login for the pages.

    Attributes:
        user: Name of the user, not empty, without a colon.
        password: Password, not empty.
    """

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user or not self.password:
            raise InvalidValueError("credentials must have a user name without a colon, and a password")


@dataclass(frozen=True, slots=True)
class Settings:
    """Address and access settings of the dashboard.

    Attributes:
        host: Address to listen on. Credentials are required unless it is a loopback address.
        port: Port to listen on; 0 for any free port.
        credentials: Login for the pages; with `None`, all users of this machine have access, and no others.
        read_only: Disable all actions.
        names: Allowed host names, in addition to `localhost` and IP addresses.

    Raises:
        InvalidValueError: The address is not a loopback address, and there are no credentials.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    credentials: Credentials | None = None
    read_only: bool = False
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(name.lower().rstrip(".") for name in self.names))
        if self.credentials is None and not is_loopback(self.host):
            raise InvalidValueError(
                f"host is {self.host}, which other machines can reach; without a login, anyone there could use the "
                "dashboard: set a user and a password"
            )


class Gate:
    """Checks host, login and size of each request, and adds security headers to responses."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._attempts = Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(Headers(scope=scope), scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self._app(scope, _bounded(receive), send_with_headers)

    def _refusal(self, headers: Headers, scope: Scope) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not allows_host(hosts[0], self._settings.names):
            return PlainTextResponse("This host name is not allowed; see --allow-host.\n", 421)
        expected = self._settings.credentials
        address: str = (scope.get("client") or ("",))[0]  # empty over a Unix socket
        scope["rmq_user"] = None
        if expected is None and address and not is_loopback(address):
            return PlainTextResponse("Without a login, the dashboard is available on this machine only.\n", 403)
        if expected is not None:
            authorization = headers.get("authorization", "")
            if self._attempts.exhausted(address, monotonic_s()):
                return PlainTextResponse("Too many wrong logins; try again in a minute.\n", 429, {"retry-after": "60"})
            user = logged_in(authorization, expected)
            if user is None:
                if authorization:
                    self._attempts.wrong(address, monotonic_s())
                challenge = {"www-authenticate": 'Basic realm="RMQ", charset="UTF-8"'}
                return PlainTextResponse("Authentication required.\n", 401, challenge)
            scope["rmq_user"] = user
        length = headers.get("content-length", "") or "0"
        if not length.isascii() or not length.isdecimal():
            return PlainTextResponse("content-length must be a whole number.\n", 400)
        if len(length) > 16 or int(length) > MOST_BODY_BYTES:
            return PlainTextResponse("The request is too large.\n", 413)
        return None


class Attempts:
    """Counts failed logins by network, in bounded memory, and blocks networks with too many for a minute.

    A network is an IPv4 address, or the first 64 bits of an IPv6 address.
    """

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[float, int]] = {}

    def exhausted(self, address: str, now_s: float) -> bool:
        """Return whether an address is blocked. Even a correct login is refused then."""
        began_s, number = self._wrong.get(network_of(address), (now_s, 0))
        return number >= MOST_WRONG and now_s - began_s < WRONG_S

    def wrong(self, address: str, now_s: float) -> None:
        """Count a failed login."""
        network = network_of(address)
        if network not in self._wrong and len(self._wrong) >= MOST_NETWORKS:
            self._wrong = {each: attempt for each, attempt in self._wrong.items() if now_s - attempt[0] < WRONG_S}
            if len(self._wrong) >= MOST_NETWORKS:  # drop a network that is not blocked, if there is one
                others = (each for each, (_, number) in self._wrong.items() if number < MOST_WRONG)
                del self._wrong[next(others, next(iter(self._wrong)))]
        began_s, number = self._wrong.get(network, (now_s, 0))
        if now_s - began_s >= WRONG_S:
            began_s, number = now_s, 0
        self._wrong[network] = began_s, number + 1
        if number + 1 == MOST_WRONG:
            log.warning(
                "%d failed logins from %s within %.0f s; all logins from there are refused for the rest of this time",
                MOST_WRONG,
                network,
                WRONG_S,
            )


def _bounded(receive: Receive) -> Receive:
    left = MOST_BODY_BYTES

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        while -MOST_DROPPED_BYTES < left < 0 and message.get("more_body"):  # a browser reads no response while it sends
            message = await receive()
            left -= len(message.get("body", b""))
        if left < 0:  # a chunked body has no content-length
            raise HTTPException(413)
        return message

    return bounded


def logged_in(header: str, expected: Credentials) -> str | None:
    """Return the user if an authorization header has the expected Basic login, else `None`. Takes constant time."""
    scheme, _, encoded = header.partition(" ")
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        decoded = b""
    right = f"{expected.user}:{expected.password}".encode()
    return expected.user if secrets.compare_digest(decoded, right) else None


class Forms:
    """Form tokens against cross-site request forgery: pages of other sites cannot know them.

    A token is the session cookie, signed with a key of this process.
    """

    def __init__(self) -> None:
        key = secrets.token_bytes(32)
        self._tokens = URLSafeTimedSerializer(key, salt="form")
        self._notes = URLSafeTimedSerializer(key, salt="note")

    def session(self, request: Request) -> str:
        """Return the session cookie of a request, or a new session."""
        known = request.cookies.get(SESSION_COOKIE, "")
        return known if 20 <= len(known) <= 64 else secrets.token_urlsafe(24)

    def token(self, session: str) -> str:
        """Return the token for the forms of a session, valid for 12 hours."""
        return self._tokens.dumps(session)

    def refusal(self, request: Request, form: Mapping[str, str]) -> str | None:
        """Return the reason to refuse a form, or `None`."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "This form came from another site."
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != request.headers["host"].lower():
            return "This form came from another site."
        session = request.cookies.get(SESSION_COOKIE, "")
        try:
            signed: object = self._tokens.loads(form.get("token", ""), max_age=TOKEN_AGE_S)
        except BadSignature:
            signed = None
        if not session or not isinstance(signed, str) or not secrets.compare_digest(signed.encode(), session.encode()):
            return "This form has expired, or is from another dashboard. Go back, reload the page, and try again."
        return None

    def set_session(self, response: Response, session: str) -> None:
        """Set the session cookie."""
        response.set_cookie(SESSION_COOKIE, session, httponly=True, samesite="strict")

    def set_note(self, response: Response, kind: str, text: str) -> None:
        """Store the result of an action in a cookie, to be shown on the next page."""
        signed = self._notes.dumps([kind, text[:500]])
        response.set_cookie(NOTE_COOKIE, signed, max_age=60, httponly=True, samesite="strict")

    def take_note(self, request: Request) -> tuple[str, str] | None:
        """Return the result of the last action: `good` or `bad`, and the text; `None` if there is none."""
        try:
            kind, text = self._notes.loads(request.cookies.get(NOTE_COOKIE, ""), max_age=60)
        except (BadSignature, ValueError, TypeError):
            return None
        return str(kind), str(text)
