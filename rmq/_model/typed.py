"""Typed payloads: checks of a topic's `payload` and `codec`, and the encoding of payloads as bodies."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from rmq._model.codecs import HIDDEN, Codec, Decoder, Encoder, EncryptedCodec, Finite, JsonCodec, is_payload_class
from rmq._model.merging import Max, Merge, Min, Sum
from rmq._model.messages import MESSAGE_TYPES, JoinMessage, Message
from rmq._model.settings import TopicType
from rmq._model.times import Duration, Instant
from rmq.errors import InvalidMessageError, InvalidTopicError, InvalidValueError, PayloadError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    PayloadT = TypeVar("PayloadT", default=Any)
    OtherT = TypeVar("OtherT", default=Any)
    ValueT = TypeVar("ValueT", default=bytes)
else:
    from typing import TypeVar

    PayloadT = TypeVar("PayloadT")
    OtherT = TypeVar("OtherT")
    ValueT = TypeVar("ValueT")

PayloadClass: TypeAlias = type[PayloadT]
"""Class of payloads: an alias for use within `Topic`, where `type` is a field."""

MAX_REASON = 500
"""Maximum length, in characters, of the reason in an error about a payload."""

_JSON = JsonCodec()


class MessageOptions(TypedDict, total=False):
    """Options of `Topic.message`: fields of a message besides content and payload, which depend on the type of topic.

    Examples:
        >>> from dataclasses import make_dataclass
        >>> Price = make_dataclass("Price", [("item", str), ("pence", int)])
        >>> prices = Topic("prices", TopicType.RANGE_MERGE, payload=Price)
        >>> options: MessageOptions = {"time_range": "5s", "slot_basis": "shop:1"}
        >>> prices.message("item:mug", Price("mug", 399), **options).body
        b'{"item":"mug","pence":399}'
    """

    time_range: Duration | None
    time_range_ms: int
    priority: int
    fixed_time: Instant
    fixed_time_ms: int
    delay: Duration
    slot_basis: str | bytes | None
    version: int | None
    weight: int
    of: int
    id: str | None


class Typed:
    """Encoder and decoder of a topic's payloads, and the constructor of its messages.

    Args:
        kind: The payload class.
        codec: The codec of the payloads.
        type: The topic's type.
        joins: Whether the topic joins parts.

    Attributes:
        encode: Encodes a payload as a body.
        decode: Decodes a payload from a body.
        make: Creates a message from a content, a body and options.
        plain: Encodes a payload as a body, without the check of `Finite` if `unchecked`.
        unchecked: Whether the caller of `plain` must decode a body that contains `null`, to check it; this saves a
            call.
    """

    __slots__ = ("codec", "decode", "encode", "joins", "kind", "make", "plain", "type", "unchecked")

    def __init__(self, kind: type, codec: Codec, type: TopicType, joins: bool) -> None:
        self.kind, self.codec, self.type, self.joins = kind, codec, type, joins
        self.encode, self.decode = coder_of(kind, codec)
        self.unchecked = isinstance(self.encode, Finite)
        self.plain: Encoder = self.encode.plain if isinstance(self.encode, Finite) else self.encode

        def part(content: str | bytes, body: bytes, **options: Any) -> Message:
            return JoinMessage(content, body, **options)

        self.make: Callable[..., Message] = part if joins else MESSAGE_TYPES[type]

    def __reduce__(self) -> tuple[type[Typed], tuple[Any, ...]]:
        return Typed, (self.kind, self.codec, self.type, self.joins)


@lru_cache(maxsize=1_024)
def coder_of(kind: type, codec: Codec) -> tuple[Encoder, Decoder]:
    """Return the encoder and decoder of payloads of a class."""
    return codec.encoder(kind), codec.decoder(kind)


def typed_of(topic: str, kind: type | None, codec: Codec | None, type: TopicType, merge: Merge | None) -> Typed | None:
    """Return the `Typed` for a topic with these settings; `None` without a payload class.

    Raises:
        InvalidTopicError: The payload class or the codec is invalid, or the topic keeps a number instead of a body.
    """
    if kind is None:
        if codec is not None:
            raise InvalidTopicError(f"codec of topic {topic} is {codec!r}; a codec needs a payload class, too")
        return None
    if not is_payload_class(kind):
        rule = "it must be a dataclass, a msgspec struct or a pydantic model"
        raise InvalidTopicError(f"payload of topic {topic} is {kind!r}; {rule}")
    if merge is not None and isinstance(merge.reduce, Max | Min | Sum):
        raise InvalidTopicError(
            f"payload of topic {topic} is {kind.__name__}; {merge.reduce!r} keeps a number and takes no payload class"
        )
    try:
        return Typed(kind, codec or _JSON, type, merge is not None and merge.joins)
    except Exception as error:
        raise InvalidTopicError(
            f"payload of topic {topic} is {kind.__name__}, which the codec does not take: {error}"
        ) from error


def encode_payload(typed: Typed | None, topic: str, payload: object) -> bytes:
    """Return the body of a message with a payload; see `Topic.encode`."""
    if typed is None or not isinstance(payload, typed.kind):
        raise payload_trouble(typed, topic, payload)
    try:
        return typed.encode(payload)
    except Exception as error:
        if isinstance(typed.codec, EncryptedCodec):
            raise _secret_trouble(topic, payload, error) from None
        raise InvalidMessageError(
            f"payload {payload!r:.80} cannot be encoded for topic {topic}: {reason_of(error)}", topic=topic
        ) from error


def payload_trouble(typed: Typed | None, topic: str, payload: object) -> InvalidMessageError:
    """Return the error for a payload of a class that the topic does not take."""
    taken = "no payload class" if typed is None else f"payloads of class {typed.kind.__name__}"
    secret = typed is not None and isinstance(typed.codec, EncryptedCodec)
    seen = f"of class {type(payload).__name__}" if secret else f"{payload!r:.80}"
    return InvalidMessageError(f"payload is {seen}; topic {topic} has {taken}", topic=topic)


def _secret_trouble(topic: str, payload: object, error: Exception) -> InvalidMessageError:
    """Return the error for a payload that cannot be encoded for encryption, without the payload: errors are logged."""
    return InvalidMessageError(
        f"a payload of class {type(payload).__name__} cannot be encoded for topic {topic}: "
        f"{type(error).__name__}; {HIDDEN}",
        topic=topic,
    )


def message_trouble(typed: Typed, topic: str, payload: object, error: Exception) -> Exception:
    """Return the error to raise after the creation of a message from a payload has failed with `error`."""
    if isinstance(error, InvalidValueError):
        return error
    try:
        encode_payload(typed, topic, payload)
    except InvalidMessageError as reason:
        return reason
    if missing := re.search(r"missing \d+ required [a-z -]*arguments?: (.+)$", str(error)):
        names = re.findall(r"'(\w+)'", missing[1])
        needed = " and ".join(f"{name}=" for name in names)
        return InvalidMessageError(f"a message of topic {topic} needs {needed}", topic=topic)
    what = "JoinMessage" if typed.joins else f"message of type {typed.type.name}"
    rule = str(error).rpartition("()")[2].strip() or str(error)  # a parameter that is missing, or one too many
    return InvalidMessageError(f"a {what} of topic {topic} {rule}", topic=topic)


def decode_payload(typed: Typed | None, topic: str, body: bytes | None, what: str = "body") -> Any:
    """Return the payload of a body, which errors call `what`; see `Topic.decode`."""
    if typed is None:
        raise InvalidValueError(f"topic {topic} has no payload class; set one: Topic(..., payload=Price)", topic=topic)
    if body is None:
        raise PayloadError(f"the message has no body; topic {topic} needs one, which holds a payload", topic=topic)
    try:
        return typed.decode(body)
    except MemoryError:  # another time it may decode
        raise
    except Exception as error:
        raise PayloadError(
            f"the {what} cannot be decoded as {typed.kind.__name__}: {reason_of(error)}", topic=topic
        ) from error


def reason_of(error: BaseException) -> str:
    """Return the text of an error about a payload in one line. Never raises, whatever the error's methods do."""
    try:
        text = " ".join(str(error).split()).replace("Value error, ", "")
    except BaseException:  # SystemExit, too
        text = ""
    return f"{text or type(error).__name__:.{MAX_REASON}}"
