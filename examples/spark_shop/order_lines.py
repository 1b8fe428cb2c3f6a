"""What the sample jobs begin with: order lines as a data frame, from Parquet or CSV, and a check of the topic."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

import rmq
from rmq import RmqClient, Topic
from rmq.errors import InvalidValueError, UnknownTopicError
from rmq.spark.arrow import pa, parquet
from rmq.spark.jobs import SPARK_ERRORS, one_line

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "invoice_no": ("string",),
    "stock_code": ("string",),
    "quantity": ("int", "bigint"),
    "invoice_date": ("timestamp", "timestamp_ntz"),
    "unit_price": ("double", "float", "decimal"),
    "customer_id": ("int", "bigint", "string"),
    "country": ("string",),
}
"""Column -> allowed types. `customer_id` is null for a guest."""

_CSV: Mapping[str, DataType] = {
    "quantity": IntegerType(),
    "invoice_date": TimestampNTZType(),
    "unit_price": DoubleType(),
    "customer_id": IntegerType(),
}
"""Types of CSV columns; others are strings."""


def slice_path() -> str:
    """Return the path of the sample included in RMQ: the order lines of one day."""
    return str(files("rmq.demo").joinpath("data/orders.csv.gz"))


def whole_path() -> str | None:
    """Return the path of the full data set of the sample; `None` if it is not on this machine.

    It is `RMQ_DATA`, or else a file in `../shared/data` beside a checkout of RMQ.

    Raises:
        InvalidValueError: The file in `RMQ_DATA` does not exist.
    """
    named = os.environ.get("RMQ_DATA")
    if named:
        if not Path(named).exists():
            raise InvalidValueError(
                f"RMQ_DATA is {named!r}, which does not exist; it must be a Parquet file of order lines"
            )
        return named
    beside = Path(rmq.__file__).resolve().parents[2] / "shared" / "data" / "online-retail.parquet"
    return str(beside) if beside.exists() else None


def check_file(path: str) -> None:
    """Check order lines without Spark, if they are a local Parquet file.

    Raises:
        InvalidValueError: The file is not Parquet, or a column is missing.
    """
    if _is_csv(path) or not Path(path).is_file():
        return
    try:
        names = parquet.read_schema(path).names  # its error is one line; Spark's are pages of traces
    except (pa.ArrowException, OSError) as error:
        raise InvalidValueError(f"order lines {path!r} cannot be read: {error}") from None
    for name in COLUMNS:
        if name not in names:
            raise _lacks(path, name)


def check_topic(client: RmqClient, topic: Topic) -> bool:
    """Return whether a topic is registered, without registering it.

    Raises:
        TopicMismatchError: It is registered with another definition.
    """
    try:
        client.topic(topic.name)
    except UnknownTopicError:
        return False
    client.inspect(topic)
    return True


def _is_csv(path: str) -> bool:
    return path.endswith((".csv", ".csv.gz"))


def _lacks(path: str, column: str) -> InvalidValueError:
    return InvalidValueError(f"order lines {path!r} have no column {column}; they need {', '.join(COLUMNS)}")


def read_lines(spark: SparkSession, path: str, *, numbered: bool = False) -> DataFrame:
    """Return the order lines of a file or folder, with the columns of `COLUMNS`.

    Args:
        spark: The session.
        path: Parquet, or CSV with a header if it ends in `.csv` or `.csv.gz`, at a path that Spark's processes can
            read.
        numbered: Add a column `line`, which sorts the lines in the order of their file.

    Raises:
        InvalidValueError: The path does not exist, is not such a file, or a column is missing or of another type.
    """
    check_file(path)
    csv = _is_csv(path)
    try:
        if csv:
            names = spark.read.csv(path, header=True).columns  # in any order, with others
            schema = StructType([StructField(name, _CSV.get(name, StringType())) for name in names])
            lines = spark.read.csv(path, header=True, schema=schema, enforceSchema=False, mode="FAILFAST")
        else:
            lines = spark.read.parquet(path)
        types = dict(lines.dtypes)
    except SPARK_ERRORS as error:
        raise InvalidValueError(f"order lines {path!r} cannot be read: {one_line(error)}") from None
    for name, allowed in COLUMNS.items():
        type_name = types.get(name)
        if type_name is None:
            raise _lacks(path, name)
        if type_name.split("(")[0] not in allowed:
            raise InvalidValueError(
                f"order lines {path!r}: column {name} is {type_name}; it must be {' or '.join(allowed)}"
            )
    if not numbered:
        return lines.select(*COLUMNS)
    row = F.monotonically_increasing_id() if csv else F.col("_metadata.row_index")
    return lines.select(*COLUMNS, F.struct("_metadata.file_path", row).alias("line"))
