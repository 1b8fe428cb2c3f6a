"""Codecs, which encode payloads as the bytes of a body and decode them again.

Optional packages are imported when they are first needed. Without msgspec, the functions at the end of this file
encode and decode dataclasses as JSON in the same form, for the types that the standard library supports.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache, partial
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, TypeAlias, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from rmq._model.settings import check_whole
from rmq.errors import InvalidValueError

Encoder: TypeAlias = Callable[[Any], bytes]
"""Function that encodes a payload as bytes."""

Decoder: TypeAlias = Callable[[bytes], Any]
"""Function that decodes a payload from bytes; any exception means that the bytes are invalid."""

HIDDEN = "its text is not shown, since it may contain secrets"
"""Replaces the text of an error if payloads are encrypted."""

MAX_INFLATED_BYTES = 64 * 1_048_576
"""Maximum size of a compressed body after decompression: four times the longest body of a topic."""


class Codec(Protocol):
    """Encodes payloads as bytes, and decodes them.

    The methods are called when a topic is defined, usually once for each payload class. If a codec does not support the
    class, its method should raise an exception: the definition then fails with `InvalidTopicError`.

    Examples:
        >>> from dataclasses import make_dataclass
        >>> Price = make_dataclass("Price", [("item", str), ("pence", int)])
        >>> class TextCodec:
        ...     def encoder(self, kind):
        ...         return lambda payload: f"{payload.item}:{payload.pence}".encode()
        ...
        ...     def decoder(self, kind):
        ...         def decode(body):
        ...             item, pence = body.decode().split(":")
        ...             return kind(item, int(pence))
        ...
        ...         return decode
        >>> prices = Topic("prices", TopicType.STREAM, payload=Price, codec=TextCodec())
        >>> prices.decode(prices.encode(Price("mug", 399)))
        Price(item='mug', pence=399)
    """

    def encoder(self, kind: type) -> Callable[[Any], bytes]:
        """Return a function that encodes payloads of a class."""
        ...

    def decoder(self, kind: type) -> Callable[[bytes], Any]:
        """Return a function that decodes payloads of a class; it raises an exception for invalid bytes."""
        ...


@dataclass(frozen=True, slots=True)
class JsonCodec:
    """Encodes dataclasses, msgspec structs and pydantic models as JSON.

    Dataclasses need no package; with msgspec they are encoded and decoded faster, in the same form.

    Examples:
        >>> from dataclasses import make_dataclass
        >>> Price = make_dataclass("Price", [("item", str), ("pence", int)])
        >>> Topic("prices", TopicType.STREAM, payload=Price, codec=JsonCodec()).encode(Price("mug", 399))
        b'{"item":"mug","pence":399}'
    """

    def encoder(self, kind: type) -> Encoder:
        """Return a function that encodes a payload as JSON."""
        msgspec = _msgspec()
        if is_pydantic(kind):
            return Finite(partial(_adapter(kind).dump_json, round_trip=True), self.decoder(kind))
        if msgspec is None:
            return encode_plain_json
        return Finite(msgspec.json.Encoder().encode, self.decoder(kind))

    def decoder(self, kind: type) -> Decoder:
        """Return a function that decodes a payload from JSON."""
        if is_pydantic(kind):
            return partial(_adapter(kind).validate_json, by_alias=True, by_name=True)
        msgspec = _msgspec()
        if msgspec is None:
            return plain_json_decoder(kind)
        msgspec.json.schema(kind)  # raises where a field is of a type that nothing decodes
        return msgspec.json.Decoder(kind).decode


@dataclass(frozen=True, slots=True)
class MsgpackCodec:
    """Encodes payloads as MessagePack, a binary form of JSON. Needs `rmq[msgspec]`.

    Raises:
        ModuleNotFoundError: The package msgspec is not installed.

    Examples:
        >>> from dataclasses import make_dataclass
        >>> Price = make_dataclass("Price", [("item", str), ("pence", int)])
        >>> len(Topic("prices", TopicType.STREAM, payload=Price, codec=MsgpackCodec()).encode(Price("mug", 399)))
        19
    """

    def __post_init__(self) -> None:
        _needed("msgspec", "MsgpackCodec", "msgspec")

    def encoder(self, kind: type) -> Encoder:
        """Return a function that encodes a payload as MessagePack."""
        encode = import_module("msgspec").msgpack.Encoder().encode
        if not is_pydantic(kind):
            return encode
        adapter = _adapter(kind)
        return lambda payload: encode(adapter.dump_python(payload, mode="json", round_trip=True))

    def decoder(self, kind: type) -> Decoder:
        """Return a function that decodes a payload from MessagePack."""
        msgspec = import_module("msgspec")
        msgpack = msgspec.msgpack
        if not is_pydantic(kind):
            msgspec.json.schema(kind)  # as above
            return msgpack.Decoder(kind).decode
        # the model reads it by its rules for JSON: those for Python's values take no text for a time, or for bytes
        decode, read = msgpack.Decoder().decode, JsonCodec().decoder(kind)
        to_json: Callable[[Any], bytes] = import_module("pydantic_core").to_json
        return lambda body: read(to_json(decode(body)))


@dataclass(frozen=True, slots=True)
class ZstdCodec:
    """Compresses the output of another codec. Needs `rmq[zstd]`.

    Args:
        inner: The other codec; JSON by default.
        level: Compression level, 1 to 22.

    Raises:
        InvalidValueError: `level` is out of range.
        ModuleNotFoundError: The package zstandard is not installed.

    Examples:
        >>> from dataclasses import make_dataclass
        >>> Price = make_dataclass("Price", [("item", str), ("pence", int)])
        >>> prices = Topic("prices", TopicType.STREAM, payload=Price, codec=ZstdCodec(level=10))
        >>> prices.decode(prices.encode(Price("mug", 399)))
        Price(item='mug', pence=399)
    """

    inner: Codec = field(default_factory=JsonCodec)
    level: int = 3

    def __post_init__(self) -> None:
        _needed("zstandard", "ZstdCodec", "zstd")
        check_whole("level", self.level, 22)

    def encoder(self, kind: type) -> Encoder:
        """Return a function that encodes and compresses a payload; it raises `ValueError` above 64 MiB."""
        zstandard, encode, level = import_module("zstandard"), self.inner.encoder(kind), self.level

        def deflated(payload: Any) -> bytes:
            if len(text := encode(payload)) > MAX_INFLATED_BYTES:
                raise ValueError(f"{len(text)} bytes before compression exceed the maximum of {MAX_INFLATED_BYTES}")
            return zstandard.ZstdCompressor(level).compress(text)  # one is not for all threads

        return deflated

    def decoder(self, kind: type) -> Decoder:
        """Return a function that decompresses and decodes a payload; it raises `ValueError` above 64 MiB."""
        zstandard, decode = import_module("zstandard"), self.inner.decoder(kind)

        def inflated(body: bytes) -> Any:
            if (size := zstandard.frame_content_size(body)) > MAX_INFLATED_BYTES:
                raise ValueError(f"{size} bytes after decompression exceed the maximum of {MAX_INFLATED_BYTES}")
            return decode(zstandard.ZstdDecompressor().decompress(body, max_output_size=MAX_INFLATED_BYTES))

        return inflated


@dataclass(frozen=True, slots=True)
class EncryptedCodec:
    """Encrypts and signs the output of another codec with Fernet (AES-128 in CBC mode, HMAC). Needs `rmq[encryption]`.

    Args:
        keys: One or more keys from `Fernet.generate_key()`: the first one encrypts, all decrypt.
        inner: The other codec; JSON by default.

    Raises:
        InvalidValueError: There is no key, or one is invalid.
        ModuleNotFoundError: The package cryptography is not installed.

    Examples:
        >>> from cryptography.fernet import Fernet
        >>> from dataclasses import make_dataclass
        >>> Price = make_dataclass("Price", [("item", str), ("pence", int)])
        >>> codec = EncryptedCodec([Fernet.generate_key()])
        >>> b"mug" in Topic("prices", TopicType.STREAM, payload=Price, codec=codec).encode(Price("mug", 399))
        False
    """

    keys: bytes | str | Iterable[bytes | str] = field(repr=False)
    inner: Codec = field(default_factory=JsonCodec)

    def __post_init__(self) -> None:
        _needed("cryptography", "EncryptedCodec", "encryption")
        keys = (self.keys,) if isinstance(self.keys, bytes | str) else tuple(self.keys)
        object.__setattr__(self, "keys", keys)
        try:
            self._fernet()
        except ValueError:  # it does not show the key
            raise InvalidValueError("EncryptedCodec needs one or more valid keys from Fernet.generate_key()") from None

    def _fernet(self) -> Any:
        fernet = import_module("cryptography.fernet")
        return fernet.MultiFernet([fernet.Fernet(key) for key in cast("tuple[bytes | str, ...]", self.keys)])

    def encoder(self, kind: type) -> Encoder:
        """Return a function that encodes and encrypts a payload."""
        encrypt, encode = self._fernet().encrypt, self.inner.encoder(kind)
        return lambda payload: encrypt(encode(payload))

    def decoder(self, kind: type) -> Decoder:
        """Return a function that decrypts and decodes a payload; it raises `ValueError` if either fails."""
        decrypt, decode = self._fernet().decrypt, self.inner.decoder(kind)

        def decrypted(body: bytes) -> Any:
            try:
                text = decrypt(body)
            except import_module("cryptography.fernet").InvalidToken:
                raise ValueError("the body was not encrypted with any of the keys, or was changed") from None
            try:
                return decode(text)
            except MemoryError:
                raise
            except Exception as error:  # its text may show what was encrypted, and would stand in Redis and in logs
                reason = f"{type(error).__name__} after decryption; {HIDDEN}"
            raise ValueError(reason)

        return decrypted


def encodes_alike(codec: object) -> bool:
    """Return whether equal payloads can have equal bytes; False if the codec, or its inner codec, encrypts."""
    while codec is not None:
        if isinstance(codec, EncryptedCodec):
            return False
        codec = getattr(codec, "inner", None)
    return True


def is_payload_class(kind: object) -> bool:
    """Return whether a class can be a payload class: a dataclass, a msgspec struct or a pydantic model."""
    marks = ("__dataclass_fields__", "__struct_fields__", "__pydantic_validator__")
    return isinstance(kind, type) and any(hasattr(kind, each) for each in marks)


def is_pydantic(kind: type) -> bool:
    """Return whether a class is a pydantic model or a pydantic dataclass."""
    return hasattr(kind, "__pydantic_validator__")


@dataclass(frozen=True, slots=True)
class Finite:
    """JSON encoder that refuses NaN and infinity unless they decode again: encoders write both as `null`.

    Attributes:
        plain: The encoder without this check.
        decode: The decoder of the same class.
    """

    plain: Encoder
    decode: Decoder

    def __call__(self, payload: Any) -> bytes:
        """Encode a payload. Raises the decoder's exception for a `null` that the class does not allow."""
        body = self.plain(payload)
        if b"null" in body:
            self.decode(body)
        return body


@cache
def _adapter(kind: type) -> Any:
    return import_module("pydantic").TypeAdapter(kind)


@cache
def _msgspec() -> Any:
    try:
        return import_module("msgspec")
    except ModuleNotFoundError:
        return None


def _needed(package: str, who: str, extra: str) -> None:
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{who} needs the package {package}: pip install 'rmq[{extra}]'") from error


_Reader: TypeAlias = Callable[[Any, str], Any]
"""Function that converts the JSON value at a path such as `$.price`. Raises `ValueError` if it is invalid."""

_Known: TypeAlias = dict[type, dict[str, _Reader]]
"""Readers of the fields of each dataclass seen so far: a dataclass may contain itself."""

_NAMES: dict[type, str] = {
    NoneType: "null", dict: "object", list: "array", int: "int", float: "float", str: "str", bool: "bool",
}  # fmt: skip
_TEXTS: dict[type, Callable[[str], Any]] = {
    bytes: lambda text: b64decode(text, validate=True),
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
}
"""Types that JSON holds as text, with the function that parses the text."""

_UTC = re.compile(r"\+00:00$")


def encode_plain_json(payload: object) -> bytes:
    """Return a payload as JSON.

    Raises:
        TypeError: A value cannot be represented in JSON.
        ValueError: A float is NaN or infinite.
    """
    text = json.dumps(payload, default=_written, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def plain_json_decoder(kind: type) -> Callable[[bytes], Any]:
    """Return a function that decodes a payload of a class.

    Raises:
        TypeError: A field's type cannot be read without msgspec.
    """
    read = _reader(kind, {})
    return lambda body: read(json.loads(body, parse_constant=_refuse_constant), "$")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _written(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time):
        return _UTC.sub("Z", value.isoformat())
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, set | frozenset):
        return list(cast("set[Any]", value))
    raise TypeError(f"object of type {type(value).__name__} cannot be represented in JSON")


def _reader(kind: Any, known: _Known) -> _Reader:
    origin, args = get_origin(kind), get_args(kind)
    plain = origin or kind
    if kind is Any:
        return lambda value, _: value
    if origin in (Union, UnionType):
        return _union([_reader(each, known) for each in args])
    if origin is Literal:
        return _converted(partial(_one_of, args), "value")
    if plain in (NoneType, bool, int, str, float):
        return _plain(plain)
    if plain in _TEXTS:
        return _text(plain)
    if plain in (list, set, frozenset, tuple):
        return _array(plain, args, known)
    return _composed(kind, plain, args, known)


def _composed(kind: Any, plain: Any, args: tuple[Any, ...], known: _Known) -> _Reader:
    if is_dataclass(plain):
        return _dataclass(cast("type", plain), known)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return _converted(plain, "enum value")
    if plain in (dict, Mapping) and args[:1] in ((), (str,)):
        return _object(_reader(args[1] if args else Any, known))
    raise TypeError(f"type {kind} cannot be read without the package msgspec: pip install 'rmq[msgspec]'")


def _checked(value: Any, kind: type, path: str) -> Any:
    """Return a JSON value if it is of this type."""
    if type(value) is not kind:
        raise _wrong(_NAMES[kind], value, path)
    return value


def _wrong(wanted: str, value: object, path: str) -> ValueError:
    return ValueError(f"Expected `{wanted}`, got `{_NAMES.get(type(value), type(value).__name__)}` - at `{path}`")


def _plain(kind: type) -> _Reader:
    if kind is float:
        return lambda value, path: float(value) if type(value) is int else _checked(value, float, path)
    return lambda value, path: _checked(value, kind, path)


def _converted(convert: Callable[[Any], Any], what: str) -> _Reader:
    """Return a reader of values that a function converts, or refuses by a `ValueError`."""

    def read(value: Any, path: str) -> Any:
        try:
            return convert(value)
        except (ValueError, InvalidOperation):
            raise ValueError(f"Invalid {what} {value!r:.80} - at `{path}`") from None

    return read


def _text(kind: type) -> _Reader:
    convert = _converted(lambda value: _TEXTS[kind](str(value)), kind.__name__)

    def read(value: Any, path: str) -> Any:
        if type(value) is not str and not (kind is Decimal and type(value) in (int, float)):
            raise _wrong(kind.__name__, value, path)
        return convert(value, path)

    return read


def _one_of(values: tuple[Any, ...], value: object) -> Any:
    """Return the value if it is one of a `Literal`; 1 is not True."""
    if any(type(value) is type(each) and value == each for each in values):
        return value
    raise ValueError


def _union(readers: list[_Reader]) -> _Reader:
    def read(value: Any, path: str) -> Any:
        troubles: list[str] = []
        for each in readers:
            try:
                return each(value, path)
            except ValueError as error:
                troubles.append(str(error))
        raise ValueError(" or: ".join(troubles))

    return read


def _array(kind: type, args: tuple[Any, ...], known: _Known) -> _Reader:
    fixed = [_reader(each, known) for each in args] if kind is tuple and args[-1:] != (...,) else None
    item = _reader(args[0] if args else Any, known)

    def read(value: Any, path: str) -> Any:
        values: list[Any] = _checked(value, list, path)
        if fixed and len(fixed) != len(values):
            raise ValueError(f"Expected `array` of length {len(fixed)}, got {len(values)} - at `{path}`")
        readers = fixed or [item] * len(values)
        make, found = cast("Callable[[Any], Any]", kind), enumerate(zip(readers, values, strict=True))
        return make(each(value, f"{path}[{index}]") for index, (each, value) in found)

    return read


def _object(reader: _Reader) -> _Reader:
    return lambda value, path: {
        name: reader(found, f"{path}[...]") for name, found in _checked(value, dict, path).items()
    }


def _dataclass(kind: type, known: _Known) -> _Reader:
    made = [each for each in fields(kind) if each.init]
    needed = [each.name for each in made if each.default is MISSING and each.default_factory is MISSING]
    if kind not in known:
        known[kind] = {}
        hints = get_type_hints(kind)
        known[kind].update((each.name, _reader(hints[each.name], known)) for each in made)
    readers = known[kind]

    def read(value: Any, path: str) -> Any:
        given: dict[str, Any] = _checked(value, dict, path)
        found = {name: readers[name](each, f"{path}.{name}") for name, each in given.items() if name in readers}
        for name in needed:
            if name not in found:
                raise ValueError(f"Object missing required field `{name}` - at `{path}`")
        return kind(**found)

    return read
