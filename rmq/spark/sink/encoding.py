"""Encodes a batch of rows as messages, column by column, and reports the broken rule of each bad row.

Bad rows fail the job, or are written to a folder with `badRows=collect`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from itertools import repeat
from typing import Any, cast

from rmq import StreamMessage
from rmq.errors import InvalidMessageError, InvalidValueError
from rmq.spark.arrow import fs, pa, parquet, pc
from rmq.spark.option_kinds import quoted
from rmq.spark.sink.columns import Layout, MergeColumns, binary
from rmq.spi.scripts import (
    BODIES,
    ITEMS,
    MAX_COUNT,
    TRACE_MARK,
    EncodedMessage,
    Encoder,
    Rows,
    fold,
    read_record,
    slots_of,
    unwrap,
    wrap,
    write_record,
)

REASON = "reason"


def encode_rows(layout: Layout, batch: Any) -> tuple[Rows, dict[int, str]]:
    """Encode the rows of a batch as messages.

    Args:
        layout: The columns of the frame.
        batch: A `pyarrow.RecordBatch`.

    Returns:
        The valid rows in their order, and for each invalid row its index -> the rule that it breaks.

    Raises:
        InvalidValueError: The column `slot` differs from the slot that RMQ computes.
    """
    bad: dict[int, str] = {}
    bases = binary(batch.column("slot_basis")).to_pylist() if layout.slot_basis else None
    if layout.fields:
        return Rows.of(_entries(layout, batch, bases, bad)), bad
    contents = _contents(layout, batch, bad)
    keys = contents if bases is None else [c if b is None else b for c, b in zip(contents, bases, strict=True)]
    if layout.slot:
        slots: list[Any] = _slots(layout, batch, keys, bad)
    else:
        slots = _computed(layout, keys)
    values = _values(layout, batch, bad)
    if layout.merge is None:
        bodies = _bodies(layout, batch, bad)
    else:
        bodies = records_of(layout.encoder, layout.merge, batch, contents, bad)
    return Rows(slots, contents, values, bodies).without(bad), bad


def _contents(layout: Layout, batch: Any, bad: dict[int, str]) -> list[Any]:
    column, topic = binary(batch.column("content")), layout.topic
    lengths, most = pc.binary_length(column), topic.max_content_bytes

    def say(index: int) -> str:
        length = lengths[index].as_py()
        return "content is null" if length is None else f"content has {length} bytes; it must have 1 to {most}"

    _note(bad, pc.or_(pc.less(lengths, 1), pc.greater(lengths, most)), say)
    return column.to_pylist()


def _bodies(layout: Layout, batch: Any, bad: dict[int, str]) -> list[bytes | None]:
    if not layout.body:
        return []
    column = binary(batch.column("body"))
    lengths, most = pc.binary_length(column), layout.topic.max_body_bytes
    too_long = pc.fill_null(pc.greater(lengths, most), False)
    _note(bad, too_long, lambda index: f"body has {lengths[index].as_py()} bytes; it must have at most {most}")
    # one that looks like RMQ's envelope gets one around it
    return [wrap(body, "") if body is not None and body.startswith(TRACE_MARK) else body for body in column.to_pylist()]


def _values(layout: Layout, batch: Any, bad: dict[int, str]) -> list[int]:
    if layout.value is None:
        return [layout.constant or 0] * batch.num_rows
    column = batch.column(layout.value)
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        # microseconds, in ms rounded up: nothing happens early
        unit = pa.timestamp("us", column.type.tz) if pa.types.is_timestamp(column.type) else pa.duration("us")
        column = pc.divide(pc.add(column.cast(unit).cast(pa.int64()), 999), 1_000)
    column = column.cast(pa.int64())
    if layout.constant is not None:
        column = pc.fill_null(column, layout.constant)
    low, high = layout.encoder.bounds

    def say(index: int) -> str:
        return f"{layout.value} is {column[index].as_py()}; it must be a whole number from {low} to {high}"

    _note(bad, pc.or_(pc.less(column, low), pc.greater(column, high)), say)
    return column.to_pylist()


def _computed(layout: Layout, keys: list[Any]) -> list[int]:
    return slots_of([b"" if key is None else key for key in keys] if None in keys else keys, layout.topic.slots)


def _slots(layout: Layout, batch: Any, keys: list[Any], bad: dict[int, str]) -> list[Any]:
    column, slots = batch.column("slot").cast(pa.int64()), layout.topic.slots

    def say(index: int) -> str:
        return f"slot is {column[index].as_py()}; the slots of topic {layout.topic.name} are 0 to {slots - 1}"

    _note(bad, pc.or_(pc.less(column, 0), pc.greater(column, slots - 1)), say)
    found = column.to_pylist()
    computed = found if layout.trusted else _computed(layout, keys)
    if found == computed:
        return found
    for index, (given, slot) in enumerate(zip(found, computed, strict=True)):
        if given != slot and index not in bad:
            raise InvalidValueError(
                f"slot is {given}, but RMQ computes {slot} from {keys[index]!r:.80}, the row's slot_basis or, without "
                f"one, its content; compute column slot with rmq.spark.with_slot(frame, {slots}), or drop the column"
            )
    return found


def _entries(layout: Layout, batch: Any, bases: list[Any] | None, bad: dict[int, str]) -> list[EncodedMessage]:
    found: list[EncodedMessage] = []
    encoder = layout.encoder
    rows = zip(batch.column("fields").to_pylist(), bases or repeat(None), strict=False)
    for index, (fields, basis) in enumerate(rows):
        try:
            if fields is None:
                raise InvalidMessageError("fields is null")
            found.append(encoder.one(StreamMessage(dict(fields), slot_basis=basis)))
        except InvalidMessageError as error:
            bad[index] = str(error)
    return found


def _note(bad: dict[int, str], wrong: Any, say: Callable[[int], str]) -> None:
    """Record the rows where a mask is true or null: a value that cannot be compared is invalid, too."""
    wrong = pc.fill_null(wrong, True)
    if pc.any(wrong).as_py():
        for index in pc.indices_nonzero(wrong).to_pylist():
            bad.setdefault(index, say(index))


def records_of(
    encoder: Encoder, columns: MergeColumns, batch: Any, contents: Sequence[Any], bad: dict[int, str]
) -> list[bytes | None]:
    """Return the records of a batch's rows, `None` for rows in `bad`; adds rows that break a rule to `bad`."""

    def values(name: str | None, otherwise: Any = None) -> Iterator[Any]:
        found = repeat(otherwise, batch.num_rows) if name is None else batch.column(name).to_pylist()
        return cast("Iterator[Any]", found)

    rows = zip(
        contents,
        values(columns.value),
        values(columns.wanted),
        values(columns.version),
        values(columns.weight, 1),
        strict=True,
    )
    found: list[bytes | None] = []
    for index, (content, value, wanted, version, weight) in enumerate(rows):
        record = None
        try:
            if index in bad:
                pass
            elif columns.wanted is not None:
                record = _join_of(encoder, content, value, wanted, weight)
            else:
                record = encoder.record(content, _plain(value, content), version, weight)
        except InvalidMessageError as error:
            bad[index] = str(error)
        found.append(record)
    return found


def _plain(value: Any, content: bytes) -> Any:
    if not isinstance(value, Decimal):
        return value
    plain = int(value) if value == value.to_integral_value() else float(value)
    if Decimal(repr(plain)) != value:
        raise InvalidMessageError(
            f"value of {content!r:.80} is {value}; numbers in Redis have about 15 significant digits: "
            "round it, or send whole numbers of a smaller unit"
        )
    return plain


def _join_of(encoder: Encoder, content: bytes, value: Any, wanted: Any, weight: Any) -> bytes:
    parts = cast("list[Any]", value) if isinstance(value, list) else [value]
    if type(wanted) is not int or wanted < 1:
        raise InvalidMessageError(
            f"number of parts of {content!r:.80} is {wanted!r}; it must be a whole number of 1 or more"
        )
    if type(weight) is not int or not 1 <= weight <= MAX_COUNT:
        raise InvalidMessageError(f"weight of {content!r:.80} is {weight!r}; it must be from 1 to {MAX_COUNT}")
    if not parts or not all(parts):
        raise InvalidMessageError(f"part of {content!r:.80} is {parts!r:.80}; parts must not be null or empty")
    records = [read_record(encoder.join(content, part, wanted)) for part in parts]
    return write_record(replace(reduce(fold, records), count=weight))


def _values_of(columns: MergeColumns, row: EncodedMessage, lists: bool) -> list[dict[str, Any]]:
    """Return the column values of a message that was not sent; several rows if its items need one row each.

    Args:
        columns: The columns of a record in the frame.
        row: The message; several rows may have been folded into it.
        lists: Whether the items of a row are in one list.
    """
    record = read_record(row.body)
    values: list[Any] = [unwrap(record.body)[0] if record.kind in BODIES else record.number]
    if record.kind in ITEMS:
        values = [list(record.items)] if lists else list(record.items)
    others: dict[str, Any] = {columns.version: record.number} if columns.version else {}
    others |= {columns.wanted: record.wanted} if columns.wanted else {}
    others |= {columns.weight: record.count if len(values) == 1 else 1} if columns.weight else {}
    return [others | ({columns.value: value} if columns.value else {}) for value in values]


def open_folder(folder: str) -> tuple[Any, str]:
    """Return the file system of a folder, and the path of the folder in it.

    Raises:
        InvalidValueError: `folder` is neither an absolute path nor a URI of a file system that pyarrow supports and can
            reach, or it is a file.
    """
    try:
        files, path = fs.FileSystem.from_uri(folder)
        a_file = isinstance(files, fs.LocalFileSystem) and files.get_file_info(path).type == fs.FileType.File
    except (pa.ArrowException, OSError) as error:
        raise InvalidValueError(
            f"badRowsPath is {quoted(folder)}; it must be an absolute path, or a URI that pyarrow supports "
            f"(file, s3, gs, hdfs, abfs) and can reach: {str(error).splitlines()[0]:.100}"
        ) from None
    if a_file:
        raise InvalidValueError(f"badRowsPath is {quoted(folder)}, which is a file; it must be a folder, or not exist")
    return files, path


class BadRows:
    """Handles the invalid rows of a task.

    Args:
        layout: The columns of the frame.
        folder: Folder for the invalid rows, as Parquet with a column `reason`; `None` to fail the task at the first
            one.
        name: Name of the task and its attempt, the beginning of the file's name.
    """

    def __init__(self, layout: Layout, folder: str | None, name: str) -> None:
        self._layout = layout
        self._folder = folder
        self._file = f"{name}-{uuid.uuid4().hex[:12]}.parquet"
        self._place: tuple[Any, str] | None = None
        self._schema: Any = None
        self._writer: Any = None
        self.count = 0

    @property
    def collecting(self) -> bool:
        """Whether invalid rows are written to a folder."""
        return self._folder is not None

    def take(self, batch: Any, bad: Mapping[int, str]) -> None:
        """Write the rows `bad` (index -> reason) of a batch to the folder.

        Raises:
            InvalidMessageError: There are invalid rows, and no folder for them.
        """
        self._schema = batch.schema
        if not bad:
            return
        if not self.collecting:
            index = min(bad)
            row = batch.slice(index, 1).to_pylist()[0]
            raise InvalidMessageError(
                f"row {row!r:.400}: {bad[index]}. The job fails; badRows=collect writes such rows to a folder instead",
                topic=self._layout.topic.name,
            )
        indices = sorted(bad)
        self._write(batch.take(pa.array(indices, pa.int64())).columns, [bad[index] for index in indices])

    def take_encoded(self, rows: Sequence[EncodedMessage], reason: str) -> None:
        """Write messages that the server refused to the folder; columns that were not sent are null."""
        found = [values for row in rows for values in self._sent(row)]
        columns: list[Any] = []
        for field in self._schema:
            values, kind = [values.get(field.name) for values in found], field.type
            if field.name == self._layout.value and pa.types.is_timestamp(kind):
                columns.append(pa.array(values, pa.timestamp("ms", kind.tz)).cast(kind))
            elif pa.types.is_decimal(kind):
                columns.append(pa.array(values, pa.float64()).cast(kind, safe=False))
            elif any(isinstance(value, bytes) for value in values):
                columns.append(pa.array(values, pa.binary()).cast(kind))
            elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
                columns.append(pa.array(values, pa.list_(pa.binary())).cast(kind))
            else:
                columns.append(pa.array(values, kind))
        self._write(columns, [reason] * len(found))

    def _sent(self, row: EncodedMessage) -> list[dict[str, Any]]:
        """Return the columns of a message as they were before encoding; several rows if its items need them."""
        layout = self._layout
        common = {"content": row.content} | ({layout.value: row.value} if layout.value else {})
        if layout.merge is None:
            return [common | {"body": unwrap(row.body)[0]}]
        value = layout.merge.value
        lists = value is not None and pa.types.is_nested(self._schema.field(value).type)
        return [common | values for values in _values_of(layout.merge, row, lists)]

    def keep(self) -> None:
        """Close the file and give it its final name, under which Spark reads it."""
        if self._writer is not None and self._place is not None:
            self._writer.close()
            files, folder = self._place
            files.move(f"{folder}/_{self._file}", f"{folder}/{self._file}")
            self._writer = None

    def drop(self) -> None:
        """Remove an unfinished file: the task has failed, and the next attempt writes its own."""
        if self._writer is not None and self._place is not None:
            self._writer.close()
            files, folder = self._place
            files.delete_file(f"{folder}/_{self._file}")
            self._writer = None

    def _write(self, columns: Sequence[Any], reasons: Sequence[str]) -> None:
        fields = [field.with_nullable(True) for field in self._schema]
        schema = pa.schema([*fields, pa.field(REASON, pa.string())])
        if self._writer is None:
            files, folder = self._place = open_folder(self._folder or "")
            files.create_dir(folder, recursive=True)
            # Spark passes over files whose name begins like this
            self._writer = parquet.ParquetWriter(f"{folder}/_{self._file}", schema, filesystem=files)
        self._writer.write_batch(pa.RecordBatch.from_arrays([*columns, pa.array(reasons, pa.string())], schema=schema))
        self.count += len(reasons)
