"""Rows that break a rule: the end of the job, or a file of their own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rmq._model.batches import EncodedMessage
from rmq._model.records import unwrap
from rmq.errors import InvalidMessageError, InvalidValueError
from rmq.spark.arrow import fs, pa, parquet
from rmq.spark.option_kinds import quoted
from rmq.spark.sink.columns import Layout
from rmq.spark.sink.merge_columns import values_of

REASON = "reason"


def open_folder(folder: str) -> tuple[Any, str]:
    """Return the file system of a folder, and its path there.

    Raises:
        InvalidValueError: It is no absolute path, and no URI of a file system that pyarrow knows and can reach.
    """
    try:
        files, path = fs.FileSystem.from_uri(folder)
        a_file = isinstance(files, fs.LocalFileSystem) and files.get_file_info(path).type == fs.FileType.File
    except (pa.ArrowException, OSError) as error:
        raise InvalidValueError(
            f"badRowsPath is {quoted(folder)}; it must be an absolute path, or a URI that pyarrow supports "
            f"(file, s3, gs, hdfs, abfs): {str(error).splitlines()[0]:.100}"
        ) from None
    if a_file:
        raise InvalidValueError(f"badRowsPath is {quoted(folder)}, which is a file; it must be a folder, or not exist")
    return files, path


class BadRows:
    """Handles the invalid rows of a task.

    Args:
        layout: What the columns are.
        folder: Where they go, as Parquet with a column `reason`; `None`: the first ends the task.
        name: Names the task and its attempt, in the name of the file.
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
        """Whether they go to a folder."""
        return self._folder is not None

    def take(self, batch: Any, bad: Mapping[int, str]) -> None:
        """Put the rows `bad` (index -> reason) of a batch aside.

        Raises:
            InvalidMessageError: They are not collected.
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
        """Put aside messages that the server refused, with the columns that were sent; the others are null."""
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
        """Return the columns of a message, as they were before it was encoded; several rows where its items need it."""
        layout = self._layout
        common = {"content": row.content} | ({layout.value: row.value} if layout.value else {})
        if layout.merge is None:
            return [common | {"body": unwrap(row.body)[0]}]
        value = layout.merge.value
        lists = value is not None and pa.types.is_nested(self._schema.field(value).type)
        return [common | values for values in values_of(layout.merge, row, lists)]

    def keep(self) -> None:
        """Finish the file: from now on it can be seen."""
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
