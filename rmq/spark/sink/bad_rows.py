"""Handling of invalid rows: they fail the job, or are written to a folder with `badRows=collect`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rmq.errors import InvalidMessageError, InvalidValueError
from rmq.spark.arrow import fs, pa, parquet
from rmq.spark.option_kinds import quoted
from rmq.spark.sink.columns import Layout
from rmq.spark.sink.encoding import values_of
from rmq.spi.scripts import EncodedMessage, unwrap

REASON = "reason"


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
        return [common | values for values in values_of(layout.merge, row, lists)]

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
