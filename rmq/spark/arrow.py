"""Imports of pyarrow, and of the parts of pyspark that need it, in one place, since they have no types."""

from __future__ import annotations

from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
from pyarrow import compute as pyarrow_compute  # pyright: ignore[reportMissingTypeStubs]
from pyarrow import fs as pyarrow_fs  # pyright: ignore[reportMissingTypeStubs]
from pyarrow import parquet as pyarrow_parquet  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql.pandas import types as pyspark_types

pa: Any = pyarrow
pc: Any = pyarrow_compute
fs: Any = pyarrow_fs
parquet: Any = pyarrow_parquet
spark_types: Any = pyspark_types
