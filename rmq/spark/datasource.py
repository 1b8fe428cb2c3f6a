"""What Spark asks for when it sees `format("rmq")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from rmq.spark.source import RmqStreamReader
from rmq.spark.source_options import source_settings
from rmq.spark.source_rows import SCHEMA


class RmqDataSource(DataSource):
    """The data source `rmq`."""

    @classmethod
    def name(cls) -> str:
        """Return the name that goes into `format(...)`."""
        return "rmq"

    def schema(self) -> str:
        """Return the columns of what is read."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of `readStream`."""
        return RmqStreamReader(source_settings(self.options))
