"""JSON of dataclasses without a package: what msgspec writes and reads, as far as the standard library goes."""

from __future__ import annotations

import dataclasses
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

Reader: TypeAlias = Callable[[Any, str], Any]
"""Makes a value of what JSON says at a path such as `$.price`. Raises `ValueError`."""

_Known: TypeAlias = dict[type, dict[str, Reader]]
"""The readers of the fields of each dataclass that was met: one may hold itself."""

_NAMES: dict[type, str] = {
    NoneType: "null",
    dict: "object",
    list: "array",
    int: "int",
    float: "float",
    str: "str",
    bool: "bool",
}
_TEXTS: dict[type, Callable[[str], Any]] = {
    bytes: lambda text: b64decode(text, validate=True),
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
}
"""What stands in JSON as text."""

_UTC = re.compile(r"\+00:00$")


def encode(payload: object) -> bytes:
    """Return a payload as JSON.

    Raises:
        TypeError: It holds a value that has no form in JSON.
        ValueError: It holds a float that is no finite number.
    """
    text = json.dumps(payload, default=_written, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def decoder(kind: type) -> Callable[[bytes], Any]:
    """Return what reads a payload of a class.

    Raises:
        TypeError: A field's type cannot be read without msgspec.
    """
    read = _reader(kind, {})
    return lambda body: read(json.loads(body, parse_constant=_refuse_constant), "$")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _written(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
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
    raise TypeError(f"JSON has no form for {type(value).__name__}")


def _reader(kind: Any, known: _Known) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    plain = origin or kind
    if kind is Any:
        return lambda value, _: value
    if origin in (Union, UnionType):
        return _union([_reader(each, known) for each in args])
    if origin is Literal:
        return _one_of(args)
    if plain in (NoneType, bool, int, str, float):
        return _plain(plain)
    if plain in _TEXTS:
        return _text(plain)
    if plain in (list, set, frozenset, tuple):
        return _array(plain, args, known)
    return _composed(kind, plain, args, known)


def _composed(kind: Any, plain: Any, args: tuple[Any, ...], known: _Known) -> Reader:
    if dataclasses.is_dataclass(plain):
        return _dataclass(cast("type", plain), known)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return _enum(plain)
    if plain in (dict, Mapping) and args[:1] in ((), (str,)):
        return _object(_reader(args[1] if args else Any, known))
    raise TypeError(f"type {kind} cannot be read without the package msgspec: pip install 'rmq[msgspec]'")


def _wrong(wanted: str, value: object, path: str) -> ValueError:
    return ValueError(f"Expected `{wanted}`, got `{_NAMES.get(type(value), type(value).__name__)}` - at `{path}`")


def _plain(kind: type) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise _wrong(_NAMES[kind], value, path)

    return read


def _text(kind: type) -> Reader:
    convert = _TEXTS[kind]

    def read(value: Any, path: str) -> Any:
        if type(value) is not str and not (kind is Decimal and type(value) in (int, float)):
            raise _wrong(kind.__name__, value, path)
        try:
            return convert(str(value))
        except (ValueError, InvalidOperation):
            raise ValueError(f"Invalid {kind.__name__} {value!r:.80} - at `{path}`") from None

    return read


def _enum(kind: type[Enum]) -> Reader:
    def read(value: Any, path: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"Invalid enum value {value!r:.80} - at `{path}`") from None

    return read


def _one_of(values: tuple[Any, ...]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if any(type(value) is type(each) and value == each for each in values):
            return value
        raise ValueError(f"Invalid value {value!r:.80} - at `{path}`")

    return read


def _union(readers: list[Reader]) -> Reader:
    def read(value: Any, path: str) -> Any:
        troubles: list[str] = []
        for each in readers:
            try:
                return each(value, path)
            except ValueError as error:
                troubles.append(str(error))
        raise ValueError(" or: ".join(troubles))

    return read


def _array(kind: type, args: tuple[Any, ...], known: _Known) -> Reader:
    fixed = [_reader(each, known) for each in args] if kind is tuple and args[-1:] != (...,) else None
    item = _reader(args[0] if args else Any, known)

    def read(value: Any, path: str) -> Any:
        if type(value) is not list:
            raise _wrong("array", value, path)
        values = cast("list[Any]", value)
        if fixed and len(fixed) != len(values):
            raise ValueError(f"Expected `array` of length {len(fixed)}, got {len(values)} - at `{path}`")
        readers = fixed or [item] * len(values)
        make = cast("Callable[[Any], Any]", kind)
        return make(
            each(found, f"{path}[{index}]") for index, (each, found) in enumerate(zip(readers, values, strict=True))
        )

    return read


def _object(reader: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _wrong("object", value, path)
        return {name: reader(found, f"{path}[...]") for name, found in cast("dict[str, Any]", value).items()}

    return read


def _dataclass(kind: type, known: _Known) -> Reader:
    made = [field for field in dataclasses.fields(kind) if field.init]
    missing = dataclasses.MISSING
    needed = [each.name for each in made if each.default is missing and each.default_factory is missing]
    if kind not in known:
        known[kind] = {}
        hints = get_type_hints(kind)
        known[kind].update((each.name, _reader(hints[each.name], known)) for each in made)
    readers = known[kind]

    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _wrong("object", value, path)
        given = cast("dict[str, Any]", value)
        found = {name: readers[name](each, f"{path}.{name}") for name, each in given.items() if name in readers}
        for name in needed:
            if name not in found:
                raise ValueError(f"Object missing required field `{name}` - at `{path}`")
        return kind(**found)

    return read
