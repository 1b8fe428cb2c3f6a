"""Versions of the JSON documents in Redis and ZooKeeper, and which versions may act on them.

A document carries `version`, its writer's, and `min_reader`, the oldest version that may act on it. A reader whose own
version is at least `min_reader` reads the document, and keeps the fields that it does not know when it writes the
document anew. Any other reader ignores that document only, and logs it once.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from rmq.errors import UnreadableDocumentError

FIRST_VERSION = 4
"""The oldest schema version that is read."""

SCHEMA_VERSION = 5
"""Version of the documents that this code writes."""

_ACTED_ON_SINCE = {"deleted": 5, "tombstones": 5}
"""Fields that no reader may ignore, with the first version that knows them: those of deleted topics."""

MAX_DOCUMENT_BYTES = 1_000_000
"""A longer document is not read. Source: ZooKeeper refuses nodes over 1 MiB; a definition takes less than 1 kB."""


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document that this version may act on, with the fields that this version does not know."""

    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])  # without the two versions
    version: int = FIRST_VERSION  # the writer's
    min_reader: int = FIRST_VERSION  # the oldest version that may act on it

    def to_json(self) -> str:
        """Return the text to store."""
        needed = [version for name, version in _ACTED_ON_SINCE.items() if name in self.fields]
        versions = {"version": self.version, "min_reader": max([self.min_reader, *needed])}
        return json.dumps({**self.fields, **versions}, separators=(",", ":"))

    def amended(self, before: Mapping[str, Any], after: Mapping[str, Any], min_reader: int = FIRST_VERSION) -> Document:
        """Return this document with a change; fields that are not changed stay as stored.

        `before` and `after` are fields as this version writes them; `min_reader` is the oldest that may act on `after`.
        """
        fields = _amended(self.fields, before, after)
        if self.version > SCHEMA_VERSION:  # a field that this version does not know may be why older ones are kept out
            return Document(fields, self.version, max(min_reader, self.min_reader))
        return Document(fields, SCHEMA_VERSION, min_reader)


def _amended(stored: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored fields with the change; nested objects may have unknown fields, too."""
    gone = before.keys() - after.keys()
    fields = {name: value for name, value in stored.items() if name not in gone}
    for name, value in after.items():
        if name in before and before[name] == value:
            continue
        was, read = _object_in(stored, name), _object_in(before, name)
        wanted = _object_in(after, name)
        fields[name] = value if was is None or read is None or wanted is None else _amended(was, read, wanted)
    return fields


def _object_in(fields: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = fields.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def new_document(fields: Mapping[str, Any], min_reader: int = FIRST_VERSION) -> Document:
    """Return a document of this version; `min_reader` is the oldest one that knows every field it must not ignore."""
    return Document(fields, SCHEMA_VERSION, min_reader)


def read_document(data: str | bytes, what: str, reader: int = SCHEMA_VERSION) -> Document:
    """Parse a stored document as a reader of the given version; `what` names the document in errors.

    Raises:
        UnreadableDocumentError: The document is not a JSON object, is too long, or is for newer readers only.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UnreadableDocumentError(
            f"{what} cannot be read: it has {len(data)} bytes; the maximum is {MAX_DOCUMENT_BYTES}"
        )
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:  # the latter: brackets in brackets by the thousand
        raise UnreadableDocumentError(f"{what} cannot be read: {data[:100]!r} is not JSON ({error!s:.200})") from None
    if not isinstance(value, dict):
        raise UnreadableDocumentError(f"{what} cannot be read: {data[:100]!r} is not a JSON object")
    fields = cast("dict[str, Any]", value)
    version, min_reader = fields.pop("version", None), fields.pop("min_reader", None)
    for name, number in (("version", version), ("min_reader", min_reader)):
        if type(number) is not int or not FIRST_VERSION <= number < 2**31:
            raise UnreadableDocumentError(
                f"{what} cannot be read: its {name} is {number!r:.50}; it must be from {FIRST_VERSION} to 2^31 - 1"
            )
    if min_reader > reader:
        raise UnreadableDocumentError(
            f"{what} is for schema version {min_reader} and newer (written with version {version}), "
            f"and this RMQ has version {reader}; upgrade this RMQ",
            version=version,
            min_reader=min_reader,
        )
    return Document(fields, version, min_reader)


@contextmanager
def reading(data: str | bytes, what: str) -> Generator[Mapping[str, Any]]:
    """Parse a stored document for a block that reads its fields; an error of the block means that it cannot be read.

    Raises:
        UnreadableDocumentError: As `read_document`, or a field is missing or has a value that the block refuses.
    """
    fields = read_document(data, what).fields
    try:
        yield fields
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UnreadableDocumentError(f"{what} cannot be read: {type(error).__name__}: {error!s:.200}") from None
